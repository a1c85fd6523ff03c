"""A session's process: one program after another in one namespace.

Owns what stays between them (globals, the event loop, the working directory) and how a program is
interrupted. Between two programs the process waits; threads of the session go on, tasks of its
event loop stand still.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import types
from itertools import chain, islice

from bridge.guest.api.runtime import build
from bridge.guest.api.tracebacks import Interrupted, interrupt
from bridge.guest.protocol.wire import Done
from bridge.guest.worker.program import Program, ending
from bridge.guest.worker.run_io import (
    cpu_seconds,
    exit_notice,
    import_path,
    read_run,
    show_uncaught,
)
from bridge.guest.worker.surroundings import arrange, conclude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Dict, List, Optional, Tuple

    from bridge.guest.api.client import Client
    from bridge.guest.protocol.wire import Run


STATE_BYTES = 32 * 1024 * 1024
"""Of a checkpoint. As base64 it has to fit into one frame with which a session begins."""

SETTLE_SECONDS = 0.5
"""For a coroutine that was interrupted to leave what it was in. Less than the supervisor waits."""


class Session:
    """Runs the programs of one session, in the order they come."""

    def __init__(self, client: Client, control: int) -> None:
        self._client = client
        self._control = control
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = sys.modules["builtins"]
        self._provided: Dict[str, Any] = {}
        self._workspace = ""
        self._loop: Any = None
        self._running = False
        self._lost: List[List[str]] = []
        self._begun = False
        self._restoring = False

    def serve(self, run: Run) -> int:
        """Run programs until the supervisor sends no more; return an exit status for a child."""
        own = os.getpid()
        signal.signal(signal.SIGINT, self._interrupt)
        while True:
            before = cpu_seconds()
            done = self._carried_out(run)
            if os.getpid() != own:
                # A child that the program forked and that came to the end: no run's outcome.
                show_uncaught(done)
                _flush()
                return done.exit_code
            _flush()
            if self._restoring:
                # Saved as it is now, it would take the place of what it was to begin with.
                self._client.tell(done)
                return done.exit_code
            self._client.send_last(done, exit_notice(done.exit_code, before))
            self._wait()
            run = read_run(self._control)

    # --- one run --------------------------------------------------------------------------------

    def _carried_out(self, run: Run) -> Done:
        try:
            self._running = True
            signal.signal(signal.SIGINT, self._interrupt)
            done = self._saved(run) if run.save else self._ran(run)
            self._running = False
        except Interrupted as error:
            # It came a moment before or after the program.
            done = Done("exception", 1, error=str(error), error_type="Interrupted")
        finally:
            self._running = False
        return done

    def _ran(self, run: Run) -> Done:
        sys.argv = [run.name or "run_python", *run.argv]
        own = self._module.__dict__
        given = build(run, self._client)
        if not self._begun:
            # Only here, as with a program on its own.
            sys.path[:] = import_path(run)
            self._begun = True
        # First of all, while nothing has gone elsewhere; and what is restored may import skills.
        self._workspace = self._workspace or os.getcwd()
        _regain_output()
        refused = arrange(run, self._client, given)
        self._provide(given)
        if run.state:
            self._lost = self._restored(run.state)
        program = Program(run, given, self._module, self._run_loop)
        done = ending(refused or program.run())
        conclude(self._client)
        own.pop("__run_python_result__", None)
        self._running = False
        holds, more = self._held()
        lost, self._lost = self._lost, []
        return Done(**{**done.__dict__, "holds": holds, "more": more, "lost": lost})

    def _provide(self, given: Dict[str, Any]) -> None:
        """Put what this run brings into the globals, but for names that programs use otherwise."""
        own = self._module.__dict__
        for name, value in given.items():
            if name not in own or own[name] is self._provided.get(name):
                own[name] = value
                self._provided[name] = value

    def _held(self) -> Tuple[List[List[Any]], int]:
        try:
            return inventory(self._names())
        except Interrupted:
            raise
        except BaseException:
            # A value whose class answers with an error to every question: still worth keeping.
            return [], len(self._names())

    def _names(self) -> Dict[str, Any]:
        """Return the globals that are the programs' own."""
        return {
            name: value
            for name, value in list(self._module.__dict__.items())
            if type(name) is str
            and not name.startswith("__")
            and not (name in self._provided and value is self._provided[name])
        }

    def _restored(self, state: str) -> List[List[str]]:
        import base64

        from bridge.guest.state.checkpoint import restore

        # Until it has come to an end: it may be interrupted.
        self._restoring = True
        try:
            lost = restore(self._module.__dict__, self._workspace, base64.b64decode(state))
        except Exception as error:
            lost = [["*", "the checkpoint cannot be read (%s)" % type(error).__name__]]
        self._restoring = False
        return lost

    def _saved(self, run: Run) -> Done:
        limit = int(run.limits.get("state_bytes", STATE_BYTES))
        try:
            from bridge.guest.state.checkpoint_saving import save

            for frame in save(self._names(), self._workspace, limit):
                self._client.tell(frame)
        except Exception as error:
            # What cannot be saved is still here.
            kind = type(error).__name__
            return Done("exception", 1, error="%s: %s" % (kind, error), error_type=kind)
        return Done("ok")

    # --- the event loop -------------------------------------------------------------------------

    def _run_loop(self, coroutine: Any) -> Any:
        """Run a coroutine in the session's loop, so that what hangs on the loop lasts."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except Interrupted as error:
            self._leave(loop, task)
            raise error
        except BaseException:
            self._leave(loop, task)
            raise

    def _leave(self, loop: Any, task: Any) -> None:
        """Have an interrupted coroutine come to its end; tasks that it started may go on."""
        import asyncio

        if task.done():
            if not task.cancelled():
                task.exception()
            return
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}, timeout=SETTLE_SECONDS))
        if task.done() and not task.cancelled():
            task.exception()

    # --- interrupting ---------------------------------------------------------------------------

    def _interrupt(self, number: int, frame: Optional[FrameType]) -> None:
        if not self._running:
            return
        interrupt(frame)

    # --- between runs ---------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the next run; what comes late for calls of the last is taken and dropped."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        channel = self._client.fileno()
        if channel >= 0:
            poller.register(channel, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._control in ready:
                return
            if not self._client.drain():
                poller.unregister(channel)


def _regain_output() -> None:
    """Have output go where it belongs again: a program that captured its own may have failed."""
    for name, own in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        stream: Any = getattr(sys, name, None)
        if stream is own or own is None:
            continue
        try:
            # One that is only wrapped anew is left: without it, what it wraps would be closed.
            elsewhere = stream.fileno() != own.fileno()
        except Interrupted:
            raise
        except BaseException:
            elsewhere = True
        if elsewhere:
            setattr(sys, name, own)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:
            # The program may have put something of its own there.
            continue


# --- what there is --------------------------------------------------------------------------------

MAX_NAMES = 40
"""Told of; the rest is counted."""

MAX_NAME_CHARS = 200

MAX_OBJECTS = 1_000
"""Objects of one value that are measured; a larger one is estimated from them."""

_CONTAINERS = (list, tuple, set, frozenset, dict)
_FLAT = (int, float, complex, str, bytes, bytearray, bool, type(None), range, memoryview)
_ARRAYS = ("numpy", "pandas", "polars", "pyarrow")

UNKNOWN = -1
"""Stands for a size that nobody can tell."""


def inventory(names: Dict[str, Any]) -> Tuple[List[List[Any]], int]:
    """Return name, type and size of what there is, the largest first, and how many names more.

    Modules are left out: they come back with an import.
    """
    found: List[List[Any]] = []
    for name, value in list(names.items()):
        if type(name) is not str or issubclass(type(value), types.ModuleType):
            continue
        found.append([name[:MAX_NAME_CHARS], _kind(value), size_of(value)])
    found.sort(key=lambda entry: -entry[2])
    return found[:MAX_NAMES], max(0, len(found) - MAX_NAMES)


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes, with what is directly in it.

    No code of the program's is run for that.
    """
    total = _own_size(value)
    if type(value) not in _CONTAINERS:
        return total
    is_dict = type(value) is dict
    parts = chain.from_iterable(value.items()) if is_dict else value
    sample = list(islice(parts, MAX_OBJECTS))
    # One that is there many times takes its place once.
    sizes = sum(max(0, _own_size(part)) for part in {id(part): part for part in sample}.values())
    return total + (sizes * (1 + is_dict) * len(value) // len(sample) if sample else 0)


def _own_size(value: Any) -> int:
    kind = type(value)
    if kind in _FLAT or kind in _CONTAINERS:
        return sys.getsizeof(value)
    if str(kind.__module__).partition(".")[0] in _ARRAYS:
        return _array_size(value)
    if issubclass(kind, (types.FunctionType, type)):
        return 0
    # What its class says of all its instances: asking the value itself may run the program's code,
    # and `object`'s own answer is nonsense for generators.
    return int(type.__getattribute__(kind, "__basicsize__"))


def _array_size(value: Any) -> int:
    """Return what a library's object says that it takes; those libraries are no program's code."""
    try:
        if hasattr(value, "memory_usage"):
            usage = value.memory_usage(index=True)
            return int(usage if isinstance(usage, (int, float)) else usage.sum())
        if hasattr(value, "estimated_size"):
            return int(value.estimated_size())
        return int(value.nbytes)
    except Exception:
        return UNKNOWN


def _kind(value: Any) -> str:
    try:
        name = type.__getattribute__(type(value), "__qualname__")
        return str(name)[:MAX_NAME_CHARS]
    except Exception:
        return "object"
