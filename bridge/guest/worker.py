"""The process in which the program runs, from the fork to its exit.

Owns what the program finds around it: descriptors, limits, streams, paths and builtins. It is
forked before there is a program, makes itself ready and waits. From the program's first line on it
is the program's own process: nothing here survives code that wants it gone, and nothing has to.

What only programs need is imported where it is needed, in steps that a run cuts short; see
`imports`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import builtins
import functools
import gc
import io
import os
import resource
import select
import signal
import sys
import time

from bridge.guest import imports
from bridge.guest.descriptors import close_others, private
from bridge.guest.processes import RSS_UNIT, allow_tracing, die_with_parent
from bridge.guest.relay import LEAVING
from bridge.guest.wire import MAX_FRAME_BYTES, Run, WireError, decode_host_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Sequence, Tuple

    from bridge.guest.wire import Done

NO_INPUT = "no interactive input in run_python: put the values into the code, or read a file"

_RLIMITS = {
    "address_space_bytes": "RLIMIT_AS",
    "processes": "RLIMIT_NPROC",
    "open_files": "RLIMIT_NOFILE",
    "file_bytes": "RLIMIT_FSIZE",
    "cpu_seconds": "RLIMIT_CPU",
}

_EXIT_BROKEN = 70

_LENGTH_BYTES = 8
_READ_BYTES = 1024 * 1024


def prepare() -> None:
    """Do what is the same for every program."""
    import _sitebuiltins
    import faulthandler

    sys.path[:] = [entry for entry in search_path() if entry != os.getcwd()]
    added: Dict[str, Any] = {
        "input": _refuse_input,
        "help": _sitebuiltins._Helper(),
        "exit": _sitebuiltins.Quitter("exit", "Ctrl-D"),
        "quit": _sitebuiltins.Quitter("quit", "Ctrl-D"),
    }
    for name, value in added.items():
        setattr(builtins, name, value)
    imports.OnImport("asyncio", _patch_loops)
    imports.OnImport("matplotlib", _patch_figures)
    # A crash in native code names the line that led to it.
    faulthandler.enable(file=2, all_threads=False)


def main(
    channel: int,
    control: int,
    stdout: int,
    stderr: int,
    is_init: bool,
    modules: Sequence[str],
) -> NoReturn:
    """Make this freshly forked process ready, run the program that comes, and end.

    Args:
        control: By which the later runs of a session come.
        modules: What to import while there is nothing else to do.
    """
    code = _EXIT_BROKEN
    try:
        channel, control = _settle(channel, control, stdout, stderr, is_init)
        _make_streams()
        prepare()
        run = _await_run(channel, modules)
        _limit_resources(run.limits)
        code = _run(run, channel, control)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def frame_for_worker(line: bytes) -> bytes:
    """Return a run's line as `main` reads it: behind its length."""
    return len(line).to_bytes(_LENGTH_BYTES, "big") + line


def _await_run(channel: int, modules: Sequence[str]) -> Run:
    """Wait for the run, making good use of the time."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    for _ in imports.steps([*imports.OWN, *modules]):
        if poller.poll(0):
            break
    else:
        warm_up()
    return read_run(channel)


def read_run(fd: int) -> Run:
    """Return the run that comes next, whose line stands behind its length."""
    size = int.from_bytes(_read_exactly(fd, _LENGTH_BYTES), "big")
    frame = decode_host_frame(_read_exactly(fd, size))
    if not isinstance(frame, Run):
        raise WireError("the first frame is no run")
    return frame


def _read_exactly(fd: int, size: int) -> bytes:
    """Return the next bytes and no more: replies to the program's calls may follow."""
    parts = []
    while size:
        data = os.read(fd, min(size, _READ_BYTES))
        if not data:
            # Nobody wants a program any more.
            os._exit(0)
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def warm_up() -> None:
    """Compile something, for what the first compilation sets up."""
    from bridge.guest.program import compile_program

    compile_program("1")
    sys.modules["linecache"].cache.clear()
    gc.collect()
    gc.freeze()


def _patch_loops() -> None:
    from bridge.guest import loops

    loops.install()


def _patch_figures() -> None:
    from bridge.guest import display

    display.prepare_matplotlib()
    imports.OnImport("matplotlib.pyplot", display.prepare_pyplot)


def _run(run: Run, channel: int, control: int) -> int:
    from bridge.guest.client import Client
    from bridge.guest.mcp_api import build
    from bridge.guest.program import Program, ending, wind_down
    from bridge.guest.surroundings import arrange, conclude

    gc.freeze()
    # Off since the interpreter started: all that was made until here lasts.
    gc.enable()
    client = Client(channel, int(run.limits.get("frame_bytes", MAX_FRAME_BYTES)))
    sys.argv = [run.name or "run_python", *run.argv]
    # Only here: what the program puts into its directory must never be imported before the fork.
    sys.path[:] = import_path(run)
    if run.session:
        from bridge.guest.session import Session

        return Session(client, control).serve(run)
    os.close(control)
    namespace = build(run, client)
    refused = arrange(run, client, namespace)
    program = Program(run, namespace)
    before = cpu_seconds()
    own = os.getpid()
    done = refused or program.run()
    conclude(client)
    if os.getpid() != own:
        # A child that the program forked and that came to the end: its outcome is no run's.
        show_uncaught(done)
    # It has had its say: what is left is to let go.
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    wind_down(program.module)
    done = ending(done)
    if os.getpid() == own:
        # Asked again: exit handlers may fork too.
        client.send_last(done, goodbye(done.exit_code, before))
    return done.exit_code


def _interrupt(number: int, frame: Any) -> None:
    from bridge.guest.tracebacks import interrupt

    interrupt(frame)


def goodbye(code: int, before: float) -> bytes:
    """Return the line that tells the supervisor what the kernel will, some milliseconds later.

    Args:
        before: What `cpu_seconds` was when the program began.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = cpu_seconds() - before
    peak = max(own.ru_maxrss, children.ru_maxrss) * RSS_UNIT
    return b'%s"code":%d,"cpu_ms":%d,"peak_memory_bytes":%d}\n' % (LEAVING, code, cpu * 1000, peak)


def cpu_seconds() -> float:
    """Return what this process and those that it has waited for have used."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def show_uncaught(done: Done) -> None:
    """Print an exception as the interpreter does, unless the program's own hook has done so."""
    if done.outcome != "exception" or sys.excepthook is not sys.__excepthook__:
        return
    try:
        print(done.error, file=sys.stderr, flush=True)
    except Exception:
        # The program may have replaced or closed its stderr.
        return


def _settle(channel: int, control: int, stdout: int, stderr: int, is_init: bool) -> Tuple[int, int]:
    """Give this process its own session and descriptors; return those that lead to us."""
    os.setsid()
    if not is_init:
        die_with_parent()
    allow_tracing()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, _interrupt)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    channel, control = private(channel), private(control)
    close_others((0, 1, 2, channel, control))
    _volunteer_for_oom()
    return channel, control


def _limit_resources(limits: Mapping[str, Any]) -> None:
    for name, constant in _RLIMITS.items():
        if limits.get(name) is not None:
            _limit(getattr(resource, constant), int(limits[name]))
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        # Not every kernel has it; a core file would go to a directory in memory anyway.
        return


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
    """Return where imports look: the library, the working directory, the image's packages.

    The library comes first, so that no file can stand in for a part of it that happens not to be
    imported yet. `.pth` files are not read: the guest starts without `site`.
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
    return (*sys.path, os.getcwd(), *(entry for entry in found if entry not in sys.path))


def import_path(run: Run) -> List[str]:
    """Return where a run's imports look: its own packages come before those of the image."""
    found = list(search_path())
    if run.paths:
        own = os.getcwd()
        place = found.index(own) + 1 if own in found else len(found)
        found[place:place] = run.paths
    return found


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

    def read(self, *size: Any) -> NoReturn:
        """Refuse."""
        raise EOFError(NO_INPUT)

    readline = readlines = __next__ = read
