"""The process in which the program runs, from the fork to its exit.

Owns what the program finds around it: descriptors, limits, streams, paths and builtins. It is the
program's own process: nothing here survives code that wants it gone, and nothing has to.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import faulthandler
import functools
import gc
import io
import linecache
import os
import resource
import signal
import sys
import traceback
from typing import Any, Dict, Mapping, NoReturn, Tuple

from bridge.guest import loops
from bridge.guest.client import Client
from bridge.guest.descriptors import close_others, private
from bridge.guest.mcp_api import build
from bridge.guest.processes import allow_tracing, die_with_parent
from bridge.guest.program import Program, compile_program, guest_files, wind_down
from bridge.guest.wire import MAX_FRAME_BYTES, Done, Run

NO_INPUT = "no interactive input in run_python: put the values into the code, or read a file"

_RLIMITS = {
    "address_space_bytes": "RLIMIT_AS",
    "processes": "RLIMIT_NPROC",
    "open_files": "RLIMIT_NOFILE",
    "file_bytes": "RLIMIT_FSIZE",
    "cpu_seconds": "RLIMIT_CPU",
}

_EXIT_BROKEN = 70


def prepare() -> None:
    """Do what is the same for every program, once, before the fork and while nobody waits."""
    search_path()
    added: Dict[str, Any] = {
        "input": _refuse_input,
        "help": _sitebuiltins._Helper(),
        "exit": _sitebuiltins.Quitter("exit", "Ctrl-D"),
        "quit": _sitebuiltins.Quitter("quit", "Ctrl-D"),
    }
    for name, value in added.items():
        setattr(builtins, name, value)
    loops.install()
    # A crash in native code names the line that led to it.
    faulthandler.enable(file=2, all_threads=False)
    guest_files()
    # Whatever the first compilation sets up is inherited too.
    compile_program("1")
    linecache.cache.clear()


def main(run: Run, channel: int, stdout: int, stderr: int, is_init: bool) -> NoReturn:
    """Run the program in this freshly forked process, then end it."""
    code = _EXIT_BROKEN
    try:
        channel = _settle(run.limits, channel, stdout, stderr, is_init)
        _make_streams()
        code = _run(run, channel)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(run: Run, channel: int) -> int:
    client = Client(channel, int(run.limits.get("frame_bytes", MAX_FRAME_BYTES)))
    sys.argv = ["run_python", *run.argv]
    # Only here: what the program puts into its directory must never be imported before the fork.
    sys.path[:] = search_path()
    program = Program(run, build(run, client))
    own = os.getpid()
    done = program.run()
    if os.getpid() != own:
        # A child that the program forked and that came to the end: its outcome is no run's.
        _show_uncaught(done)
    wind_down(program.module)
    if os.getpid() == own:
        # Asked again: exit handlers may fork too.
        client.send_last(done)
    return done.exit_code


def _show_uncaught(done: Done) -> None:
    """Print an exception as the interpreter does, unless the program's own hook has done so."""
    if done.outcome != "exception" or sys.excepthook is not sys.__excepthook__:
        return
    with contextlib.suppress(Exception):
        # The program may have replaced or closed its stderr.
        print(done.error, file=sys.stderr, flush=True)


def _settle(
    limits: Mapping[str, Any], channel: int, stdout: int, stderr: int, is_init: bool
) -> int:
    """Give this process its own session, descriptors and limits; return the channel's."""
    os.setsid()
    if not is_init:
        die_with_parent()
    allow_tracing()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    channel = private(channel)
    close_others((0, 1, 2, channel))
    _volunteer_for_oom()
    with contextlib.suppress(OSError, ValueError):
        # Not every kernel has it; a core file would go to a directory in memory anyway.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, constant in _RLIMITS.items():
        if limits.get(name) is not None:
            _limit(getattr(resource, constant), int(limits[name]))
    gc.enable()
    return channel


def _volunteer_for_oom() -> None:
    """Have the kernel kill the program before the supervisor, which reports it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        # Not Linux, or a sandbox without that file.
        return


def _limit(number: int, value: int) -> None:
    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(number, (value, value))
    except (OSError, ValueError) as error:
        message = "cannot set a limit of %d on resource %d: %s"
        raise RuntimeError(message % (value, number, error)) from None


def _make_streams() -> None:
    """Give the program stdout and stderr in UTF-8, line by line, and a stdin that says no."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[misc,assignment]


@functools.lru_cache(maxsize=None)
def search_path() -> Tuple[str, ...]:
    """Return where imports look: the working directory, the library, the image's packages.

    `.pth` files are not read: the guest starts without `site`.
    """
    version = "python%d.%d" % sys.version_info[:2]
    packages = []
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, "/usr/local", "/usr")):
        packages += [
            os.path.join(prefix, "lib", version, "site-packages"),
            os.path.join(prefix, "lib", version, "dist-packages"),
            os.path.join(prefix, "local", "lib", version, "dist-packages"),
        ]
    packages.append("/usr/lib/python3/dist-packages")
    found = [entry for entry in dict.fromkeys(packages) if os.path.isdir(entry)]
    return (os.getcwd(), *sys.path, *(entry for entry in found if entry not in sys.path))


def _refuse_input(prompt: Any = "", /) -> NoReturn:
    """Say that nobody is there to answer."""
    if prompt:
        print(prompt, end="", flush=True)
    raise EOFError(NO_INPUT)


class NoInput(io.TextIOBase):
    """A stdin that raises instead of pretending that the input has ended."""

    encoding = "utf-8"
    name = "<stdin>"
    mode = "r"

    @property
    def buffer(self) -> "NoInput":
        """The binary layer, which has nothing either."""
        return self

    def fileno(self) -> int:
        """Return fd 0, which is empty, for programs that hand stdin to a child."""
        return 0

    def readable(self) -> bool:
        """Say yes: the refusal comes with a reason, not as a wrong mode."""
        return True

    def read(self, size: Any = -1, /) -> NoReturn:
        """Refuse."""
        raise EOFError(NO_INPUT)

    def readline(self, size: Any = -1, /) -> NoReturn:
        """Refuse."""
        raise EOFError(NO_INPUT)

    def readlines(self, hint: Any = -1, /) -> NoReturn:
        """Refuse."""
        raise EOFError(NO_INPUT)

    def __next__(self) -> NoReturn:
        raise EOFError(NO_INPUT)
