"""Event loops inside event loops.

Owns the patches that let `asyncio.run` and `run_until_complete` work where a loop is running
already: programs mix top-level `await` with them, and plain asyncio refuses. The inner loop runs in
a thread of its own while the outer one waits.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import contextvars
import functools
import threading
import warnings
from typing import Any, Callable, List


def install() -> None:
    """Patch asyncio in this process."""
    original_run = asyncio.run

    @functools.wraps(original_run)
    def run(main: Any, **options: Any) -> Any:
        if not _loop_is_running():
            return original_run(main, **options)
        return in_thread(original_run, main, **options)

    asyncio.run = run
    asyncio.runners.run = run
    _patch_loops(original_run)
    asyncio.get_event_loop = _get_event_loop
    runner = getattr(asyncio, "Runner", None)
    if runner is not None:
        _patch_runner(runner)


def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `function` returns, or raise what it raises, in a thread of its own."""
    outcome: List[Any] = []
    context = contextvars.copy_context()

    def call() -> None:
        try:
            outcome.extend((True, context.run(function, *args, **kwargs)))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=call, name="nested-event-loop", daemon=True)
    thread.start()
    thread.join()
    if outcome[0]:
        return outcome[1]
    raise outcome[1]


def _get_event_loop() -> asyncio.AbstractEventLoop:
    """Return this thread's loop; in the main thread make one if there is none.

    Newer Pythons warn first and refuse later, while programs go on being written for older ones.
    """
    running = asyncio._get_running_loop()
    if running is not None:
        return running
    policy = asyncio.get_event_loop_policy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return policy.get_event_loop()
    except RuntimeError:
        if threading.current_thread() is not threading.main_thread():
            raise
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _loop_is_running() -> bool:
    return asyncio._get_running_loop() is not None


def _patch_loops(original_run: Callable[..., Any]) -> None:
    loop_class = asyncio.base_events.BaseEventLoop
    original = loop_class.run_until_complete

    @functools.wraps(original)
    def run_until_complete(self: Any, future: Any) -> Any:
        running = asyncio._get_running_loop()
        if running is None:
            return original(self, future)
        if running is not self:
            return in_thread(original, self, future)
        if asyncio.iscoroutine(future):
            return in_thread(original_run, future)
        message = "this event loop is running already: use `await` instead of run_until_complete"
        raise RuntimeError(message)

    loop_class.run_until_complete = run_until_complete  # type: ignore[method-assign]


def _patch_runner(runner: Any) -> None:
    original = runner.run

    @functools.wraps(original)
    def run(self: Any, coroutine: Any, **options: Any) -> Any:
        if not _loop_is_running():
            return original(self, coroutine, **options)
        return in_thread(original, self, coroutine, **options)

    runner.run = run
