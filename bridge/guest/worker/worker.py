"""The process in which the program runs, from fork to exit.

The supervisor forks it before the run arrives; it imports common modules and waits. The program may
change or remove anything here: nothing outside of the process depends on it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import _thread
import builtins
import gc
import io
import os
import resource
import select
import sys

from bridge.guest import imports, processes
from bridge.guest.protocol.wire import MAX_FRAME_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, NoReturn, Sequence, Tuple

    from bridge.guest.protocol.wire import Run

NO_INPUT = "no interactive input in run_python: put the values into the code, or read a file"

_RLIMITS = {
    "data_bytes": "RLIMIT_DATA",
    "processes": "RLIMIT_NPROC",
    "open_files": "RLIMIT_NOFILE",
    "file_bytes": "RLIMIT_FSIZE",
    "cpu_seconds": "RLIMIT_CPU",
}


def prepare() -> None:
    import _sitebuiltins
    import faulthandler

    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[misc,assignment]
    sys.path[:] = [entry for entry in imports.search_path() if entry != os.getcwd()]
    builtins.help = _sitebuiltins._Helper()
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")
    imports.OnImport("asyncio", lambda: __import__("bridge.guest.worker.event_loops"))
    imports.OnImport("json", lambda: _pass_parsed("json", "loads"))
    imports.OnImport("ast", lambda: _pass_parsed("ast", "literal_eval"))
    imports.OnImport("matplotlib", _patch_figures)
    # As many columns as a notebook shows: without a terminal pandas shows 4 of 12.
    columns = "display.max_columns", 20, "display.width", 200
    imports.OnImport("pandas", lambda: sys.modules["pandas"].set_option(*columns))
    # Pythons of pools start without this one's `-I` and `-S`: they find packages and `site`.
    name = "_args_from_interpreter_flags"
    imports.OnImport("subprocess", lambda: setattr(sys.modules["subprocess"], name, list))
    # After a crash in native code stderr names the Python line.
    faulthandler.enable(file=2, all_threads=False)


def main(channel: int, control: int, stdout: int, stderr: int, is_init: bool) -> NoReturn:
    code = 70
    try:
        channel, control = _set_up_process(channel, control, stdout, stderr, is_init)
        prepare()
        run = _await_run(control)
        _limit_resources(run.limits)
        code = _run(run, channel, control)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _await_run(control: int) -> Run:
    poller = select.poll()
    poller.register(control, select.POLLIN)

    def arrives(names: Sequence[str]) -> bool:
        return any(poller.poll(0) for _ in imports.steps(names))

    # A run that waits for its sandbox arrives earlier and must not wait for these imports.
    if not (arrives(imports.OWN) or poller.poll(100) or arrives(imports.STANDARD)):
        from bridge.guest.worker.program import compile_program

        compile_program("1")  # The first compilation is slow.
        sys.modules["linecache"].cache.clear()
        gc.collect()
        gc.freeze()
    return processes.read_run(control)


def _pass_parsed(module: str, name: str) -> None:
    """Make a parser return data unchanged: a program's results are parsed already."""
    found: Any = sys.modules[module]
    parse = getattr(found, name)

    def parse_text(text: Any, *args: Any, **options: Any) -> Any:
        if text is None or isinstance(text, (dict, list, int, float)):
            return text
        return parse(text, *args, **options)

    parse_text.__name__ = parse_text.__qualname__ = name
    parse_text.__doc__ = parse.__doc__
    setattr(found, name, parse_text)


def _patch_figures() -> None:
    from bridge.guest.api import display
    from bridge.guest.worker.environment import current_display

    def show(*args: Any, **kwargs: Any) -> None:
        # The original opens windows, and here would leave figures open.
        current_display().show_figures()

    display.prepare_matplotlib()
    name = "matplotlib.pyplot"
    imports.OnImport(name, lambda: setattr(sys.modules[name], "show", show))


def _run(run: Run, channel: int, control: int) -> int:
    from bridge.guest.api.client import ChannelClient
    from bridge.guest.api.runtime import build
    from bridge.guest.worker.environment import arrange, conclude, note_files
    from bridge.guest.worker.program import GuestProgram, final_outcome, show_uncaught, shut_down

    gc.freeze()
    # Off since the interpreter started: the objects made so far are permanent.
    gc.enable()
    client = ChannelClient(channel, int(run.limits.get("frame_bytes", MAX_FRAME_BYTES)))
    sys.argv = [run.name or "run_python", *run.argv]
    # Not before: files in the working directory must never be imported before the fork.
    sys.path[:] = imports.import_path(run)
    if run.session:
        from bridge.guest.worker.session import WorkerSession

        return WorkerSession(client, control).serve(run)
    os.close(control)
    namespace = build(run, client)
    refused = arrange(run, client, namespace)
    note_files(client)
    program = GuestProgram(run, namespace)
    before = processes.cpu_seconds()
    own = os.getpid()
    done = refused or program.run()
    conclude(client)
    if os.getpid() != own:
        # A child that the program forked reached its end: its outcome is not the run's.
        show_uncaught(done)
    # The program has ended: an interrupt must not disturb the shutdown.
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    shut_down(program.module)
    done = final_outcome(done)
    if os.getpid() == own:
        # Checked again: exit handlers may fork too.
        client.write(processes.last_lines(done, before))
        # Until it is killed: to exit takes milliseconds of the CPU, which the supervisor may need.
        _signal.pause()
    return done.exit_code


def _interrupt(number: int, frame: Any) -> None:
    from bridge.guest.api.tracebacks import interrupt

    interrupt(frame)


def _set_up_process(
    channel: int, control: int, stdout: int, stderr: int, is_init: bool
) -> Tuple[int, int]:
    os.setsid()
    if not is_init:
        processes.prctl(processes.PR_SET_PDEATHSIG, _signal.SIGKILL)
    # Otherwise a child cannot use its own /proc files.
    processes.prctl(processes.PR_SET_DUMPABLE, 1)
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGCHLD, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _interrupt)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    channel, control = processes.private(channel), processes.private(control)
    processes.close_others((0, 1, 2, channel, control))
    try:
        # When memory runs out, the kernel kills this process and not the supervisor.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        # Not Linux, or the sandbox has no such file.
        return channel, control
    return channel, control


def _limit_resources(limits: Mapping[str, Any]) -> None:
    for name, constant in _RLIMITS.items():
        if limits.get(name) is None:
            continue
        number, value = getattr(resource, constant), int(limits[name])
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(number, (value, value))
    if limits.get("data_bytes") is not None:
        # The whole stack of a thread counts, however little of it is used.
        _thread.stack_size(2 << 20)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        # Not every kernel has this limit; a core file would only fill a directory in memory.
        return


class NoInput(io.TextIOBase):
    """A stdin that raises instead of pretending that the input has ended."""

    encoding = "utf-8"
    name = "<stdin>"
    mode = "r"

    @property
    def buffer(self) -> "NoInput":
        return self

    def fileno(self) -> int:
        """Return fd 0, which is empty, for programs that pass stdin to a child."""
        return 0

    def readable(self) -> bool:
        return True  # so that `read` raises with the reason

    def read(self, *size: Any) -> NoReturn:
        raise EOFError(NO_INPUT)

    readline = readlines = __next__ = read
