"""Handles unfinished tasks, threads, and coroutines at a program's end.

A run's tasks and threads end before its result is sent. Tasks that make no call for a second are
cancelled, and the result names them. A thread that survives in a session makes no more calls, and
its output is dropped.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
import types
import weakref

from bridge.guest.api import client
from bridge.guest.api.client import clients
from bridge.guest.api.program_files import is_program
from bridge.guest.api.tracebacks import Interrupted
from bridge.guest.imports import OnImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Set

earlier_threads = client.earlier_threads = weakref.WeakSet()

_unsent: List[str] = []
loops: Set[Any] = set()  # Those that the program runs itself: their tasks end with it.
_tasks: weakref.WeakSet[Any] = weakref.WeakSet()
_pool_work: weakref.WeakSet[Any] = weakref.WeakSet()
_never_awaited: Dict[int, Any] = {}


async def run_to_end(main: Any) -> Any:
    """Await a program's coroutine, then the tasks that it started."""
    try:
        value = await main
    except (sys.modules["asyncio"].CancelledError, Interrupted):
        raise
    except BaseException as error:
        # A program that ends itself starts nothing more.
        await _finish_tasks(at_once=isinstance(error, SystemExit))
        raise
    await _finish_tasks()
    return value


async def _finish_tasks(at_once: bool = False) -> None:
    """Wait for the loop's other tasks; cancel and name them when no calls are made."""
    asyncio: Any = sys.modules["asyncio"]
    if asyncio._get_running_loop() is None:
        # A child that the program forked.
        return
    idle = Idle()
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        if at_once or idle.is_over(()):
            await cancel_tasks(tasks)
            return
        await asyncio.wait(tasks, timeout=0.05)


class Idle:
    """Detects that an ended program makes no more progress.

    A program that calls repeatedly, such as a heartbeat, gets ten seconds between its calls.
    """

    def __init__(self) -> None:
        self._seen: Any = None
        self._looked = self._quiet_since = time.monotonic()
        self._between_calls = 0.0

    def is_over(self, threads: Iterable[threading.Thread]) -> bool:
        """Return whether nothing was called, and no thread computed, for a second."""
        now, (begun, under_way) = time.monotonic(), clients[0].activity()
        seen = (begun, [_cpu_seconds(thread) for thread in threads])
        if under_way or seen != self._seen:
            self._quiet_since = now
        if not under_way:
            self._between_calls += now - self._looked
        self._seen, self._looked = seen, now
        return now - self._quiet_since > 1.0 or self._between_calls > 10.0


def _cpu_seconds(thread: threading.Thread) -> float:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except OSError:  # it has ended
        return -1.0


async def cancel_tasks(tasks: Iterable[Any], main: Any = None) -> None:
    """Cancel tasks and wait for their end; name all but the program's own, `main`."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        if task is not main:
            note_unsent(_describe(task.get_coro()))
        task.cancel()
    if left:
        await sys.modules["asyncio"].wait(left, timeout=0.5)


def finish_loops() -> None:
    for loop in list(loops):
        if loop.is_closed():
            loops.remove(loop)
        elif not loop.is_running() and sys.modules["asyncio"].all_tasks(loop):
            loop.run_until_complete(_finish_tasks())


def make_task(loop: Any, coroutine: Any, **options: Any) -> Any:
    """Make a session's task, as the loop does by itself, and remember it."""
    task = sys.modules["asyncio"].Task(coroutine, loop=loop, **options)
    _tasks.add(task)
    return task


def _describe(coroutine: Any) -> str:
    name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None or not is_program(frame.f_code.co_filename):
        return str(name)
    return "%s (line %d)" % (name, frame.f_lineno)


def note_unsent(name: str) -> None:
    _unsent.append(name[:200])


def take_unsent() -> List[str]:
    """Return up to 20 unfinished tasks and coroutines, and the count of others."""
    names, more = _unsent[:20], len(_unsent) - 20
    _unsent.clear()
    return [*names, "%d more" % more] if more > 0 else names


def watch_threads() -> None:
    """Record a session's threads: pool workers, and threads that an earlier run's thread starts."""
    start: Any = threading.Thread.start

    def start_as_parent(self: threading.Thread) -> None:
        # Such as a timer that sets the next one.
        if threading.current_thread() in earlier_threads:
            earlier_threads.add(self)
        start(self)

    threading.Thread.start = start_as_parent  # type: ignore[method-assign]

    def patch() -> None:
        pool: Any = sys.modules["concurrent.futures.thread"].ThreadPoolExecutor
        submit = pool.submit

        def remember(*args: Any, **options: Any) -> Any:
            _pool_work.add(future := submit(*args, **options))
            return future

        pool.submit = remember

    OnImport("concurrent.futures.thread", patch)


def finish_threads(names: Iterable[Any]) -> None:
    """Wait for a run's threads, and print Python's warnings on it; `names` are values that stay."""
    for work in list(_pool_work):
        if not work.cancelled():
            work.exception()
    idle = Idle()
    while (threads := [one for one in _threads() if not one.daemon]) and not idle.is_over(threads):
        threads[0].join(0.05)
    for thread in threads:
        note_unsent("thread %s" % thread.name)
    kept = [value for value in names if type(value) is types.CoroutineType]
    for value in kept:
        from inspect import CORO_CREATED, getcoroutinestate  # slow to import, and seldom needed

        if id(value) not in _never_awaited and getcoroutinestate(value) == CORO_CREATED:
            # Kept, so that Python does not warn of it in a later run.
            _never_awaited[id(value)] = value
            note_unsent("%s (not awaited)" % _describe(value))
    for number in _never_awaited.keys() - set(map(id, kept)):
        _never_awaited.pop(number).close()
    for task in list(_tasks):
        # Python prints an unretrieved error when its task is deleted, which may be later.
        if task.done() and getattr(task, "_log_traceback", False):
            context = {"message": "Task exception was never retrieved", "task": task}
            task.get_loop().call_exception_handler({**context, "exception": task.exception()})
    gc.collect()


def silence_threads() -> None:
    earlier_threads.update(_threads())
    if earlier_threads:
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None and "write" not in stream.__dict__:
                stream.write = functools.partial(_write, stream.write)  # type: ignore[method-assign]


def _write(write: Callable[[str], int], text: str) -> int:
    return len(text) if threading.current_thread() in earlier_threads else write(text)


def _threads() -> List[threading.Thread]:
    pools: Any = sys.modules.get("concurrent.futures.thread")
    processes: Any = sys.modules.get("concurrent.futures.process")
    others = [threading.main_thread(), *(pools._threads_queues if pools else ())]
    others += processes._threads_wakeups if processes else ()
    return [
        thread
        for thread in threading.enumerate()
        if thread not in others and thread not in earlier_threads and thread.name != "mcp-replies"
    ]
