"""A session's process: runs one program after another in one namespace.

Between two programs the process waits; surviving threads continue, but make no calls and print
nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import types
from itertools import chain, islice

from bridge.guest import processes
from bridge.guest.api.runtime import build
from bridge.guest.api.tracebacks import Interrupted, interrupt
from bridge.guest.imports import search_path
from bridge.guest.protocol.wire import Done
from bridge.guest.worker import leftovers
from bridge.guest.worker.environment import arrange, conclude, note_files
from bridge.guest.worker.program import GuestProgram, final_outcome, flush_streams, show_uncaught

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Dict, List, Optional, Tuple

    from bridge.guest.api.client import ChannelClient
    from bridge.guest.protocol.wire import Run


class WorkerSession:
    def __init__(self, client: ChannelClient, control: int) -> None:
        self._client = client
        self._control = control
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = sys.modules["builtins"]
        self._provided: Dict[str, Any] = {}
        self._workspace = os.getcwd()
        self._loop: Any = None
        self._running = False
        self._lost: List[List[str]] = []
        self._restoring = False
        leftovers.watch_threads()

    def serve(self, run: Run) -> int:
        """Run programs until the supervisor sends no more; return an exit status for a child."""
        own = os.getpid()
        while True:
            before = processes.cpu_seconds()
            done = self._execute(run)
            if os.getpid() != own:
                # A child that the program forked reached its end: its outcome is not the run's.
                show_uncaught(done)
                flush_streams()
                return done.exit_code
            flush_streams()
            if self._restoring:
                # A half-restored state must not be saved over the checkpoint it came from.
                self._client.tell(done)
                return done.exit_code
            self._client.write(processes.last_lines(done, before))
            self._wait()
            run = processes.read_run(self._control)

    def _execute(self, run: Run) -> Done:
        try:
            self._running = True
            signal.signal(signal.SIGINT, self._interrupt)
            done = self._save(run) if run.save else self._run_program(run)
            self._running = False
        except Interrupted as error:
            # The interrupt came just before or after the program.
            done = Done("exception", 1, error=str(error), error_type="Interrupted")
        finally:
            self._running = False
        leftovers.silence_threads()
        return done

    def _run_program(self, run: Run) -> Done:
        sys.argv = [run.name or "run_python", *run.argv]
        own = self._module.__dict__
        given = build(run, self._client)
        _reset_output()
        # Before `_restore`, which may import skills.
        refused = arrange(run, self._client, given)
        for name, value in given.items():
            if name not in own or own[name] is self._provided.get(name):
                own[name] = self._provided[name] = value
        if run.state:
            self._lost = self._restore(run.state)
        note_files(self._client)
        program = GuestProgram(run, given, self._module, self._run_loop)
        done = refused or program.run()
        leftovers.finish_threads(self._names().values())
        done = final_outcome(done)
        conclude(self._client)
        own.pop("__run_python_result__", None)
        self._running = False
        names = self._names()
        try:
            holds, more = inventory(names)
        except Interrupted:
            raise
        except BaseException:
            # A value's class raises on every access; the session is kept all the same.
            holds, more = [], len(names)
        lost, self._lost = self._lost, []
        return Done(**{**done.__dict__, "holds": holds, "more": more, "lost": lost})

    def _names(self) -> Dict[str, Any]:
        return {
            name: value
            for name, value in list(self._module.__dict__.items())
            if type(name) is str
            and not name.startswith("__")
            and not (name in self._provided and value is self._provided[name])
        }

    def _restore(self, state: str) -> List[List[str]]:
        import base64

        from bridge.guest.state.checkpoint import restore

        # Stays set if this is interrupted.
        self._restoring = True
        try:
            lost = restore(self._module.__dict__, self._workspace, base64.b64decode(state))
        except Exception as error:
            lost = [["*", "the checkpoint cannot be read (%s)" % type(error).__name__]]
        self._restoring = False
        return lost

    def _save(self, run: Run) -> Done:
        # As base64 it must fit into the first run's frame.
        limit = int(run.limits.get("state_bytes", 32 * 1024 * 1024))
        try:
            if run.argv:
                from bridge.guest.state.installed import report

                frames = report(run, search_path())
            else:
                from bridge.guest.state.checkpoint_saving import save

                frames = save(self._names(), self._workspace, limit)
            for frame in frames:
                self._client.tell(frame)
        except Exception as error:
            # The session continues with its state unsaved.
            kind = type(error).__name__
            return Done("exception", 1, error="%s: %s" % (kind, error), error_type=kind)
        return Done("ok")

    def _run_loop(self, coroutine: Any) -> Any:
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.set_task_factory(leftovers.make_task)
        task = loop.create_task(leftovers.run_to_end(coroutine))
        try:
            value = loop.run_until_complete(task)
            for timer in list(getattr(loop, "_scheduled", ())):
                timer.cancel()  # It would be called in a later run.
            return value
        except BaseException as error:
            loop.run_until_complete(leftovers.cancel_tasks(asyncio.all_tasks(loop), task))
            if task.done() and not task.cancelled():
                task.exception()
            # A new traceback entry: the frames of the tasks belong to the interrupt.
            raise error

    def _interrupt(self, number: int, frame: Optional[FrameType]) -> None:
        if self._running:
            interrupt(frame)

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        channel = self._client.fileno()
        if channel >= 0:
            poller.register(channel, select.POLLIN)
        while True:
            if self._control in dict(poller.poll()):
                return
            if not self._client.drain():
                poller.unregister(channel)


def _reset_output() -> None:
    """Reset stdout and stderr, which a program that failed may have left redirected."""
    for name, own in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        try:
            # A wrapper around the same descriptor stays: dropping it would close what it wraps.
            redirected = getattr(sys, name).fileno() != own.fileno()  # type: ignore[union-attr]
        except Interrupted:
            raise
        except BaseException:
            redirected = True
        if redirected and own is not None:
            setattr(sys, name, own)


_CONTAINERS = (list, tuple, set, frozenset, dict)
_FLAT = (int, float, complex, str, bytes, bytearray, bool, type(None), range, memoryview)


def inventory(names: Dict[str, Any]) -> Tuple[List[List[Any]], int]:
    """Return [name, type, bytes] of the 40 largest globals, and the number of the others."""
    found: List[List[Any]] = []
    for name, value in names.items():
        if not issubclass(type(value), types.ModuleType):
            kind = type.__getattribute__(type(value), "__qualname__")
            found.append([name[:200], str(kind)[:200], size_of(value)])
    found.sort(key=lambda entry: -entry[2])
    return found[:40], len(found[40:])


def size_of(value: Any) -> int:
    """Return the approximate size of a value and its direct items in bytes; -1 if unknown."""
    total = _own_size(value)
    if type(value) not in _CONTAINERS:
        return total
    is_dict = type(value) is dict
    parts = chain.from_iterable(value.items()) if is_dict else value
    sample = list(islice(parts, 1_000))  # The size of a larger one is extrapolated.
    # An object that occurs several times counts once.
    sizes = sum(max(0, _own_size(part)) for part in {id(part): part for part in sample}.values())
    return total + (sizes * (1 + is_dict) * len(value) // len(sample) if sample else 0)


def _own_size(value: Any) -> int:
    kind = type(value)
    if kind in _FLAT or kind in _CONTAINERS:
        return sys.getsizeof(value)
    if str(kind.__module__).partition(".")[0] not in ("numpy", "pandas", "polars", "pyarrow"):
        # Not `__sizeof__`, which may be the program's code; `object`'s is wrong for generators.
        basic = int(type.__getattribute__(kind, "__basicsize__"))
        return 0 if issubclass(kind, (types.FunctionType, type)) else basic
    try:
        if hasattr(value, "memory_usage"):
            usage = value.memory_usage(index=True)
            return int(usage if isinstance(usage, (int, float)) else usage.sum())
        if hasattr(value, "estimated_size"):
            return int(value.estimated_size())
        return int(value.nbytes)
    except Exception:
        return -1
