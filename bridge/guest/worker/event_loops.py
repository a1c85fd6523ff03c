"""Supports nested event loops, and event loops in forked children.

Patches asyncio so that `asyncio.run` and `run_until_complete` work while a loop is running:
programs mix them with top-level `await`. Another loop runs in its own thread while the outer one
waits; the running loop runs nested in itself. A child forked from a running loop gets its own epoll
and wake-up pipe instead of sharing its parent's.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import select
import selectors
import threading
import warnings
from typing import Any, Callable, List

from bridge.guest.api.client import clients
from bridge.guest.worker.leftovers import loops, run_to_end


def _install() -> None:
    outside = _outside(asyncio.run)

    @functools.wraps(asyncio.run)
    def run(main: Any, **options: Any) -> Any:
        return outside(run_to_end(main) if asyncio.iscoroutine(main) else main, **options)

    original_to_thread: Any = asyncio.to_thread

    @functools.wraps(original_to_thread)
    async def to_thread(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        # A call of an async function, such as a tool, begins when it is awaited.
        value = await original_to_thread(function, *args, **kwargs)
        return await value if asyncio.iscoroutine(value) else value

    asyncio.to_thread = to_thread
    asyncio.run = run
    asyncio.runners.run = run
    original: Any = asyncio.BaseEventLoop.run_until_complete

    @functools.wraps(original)
    def run_until_complete(self: Any, future: Any) -> Any:
        running = asyncio._get_running_loop()
        loops.add(self)
        if running is None:
            return original(self, future)
        if running is not self:
            return in_thread(original, self, future)
        return _run_nested(self, asyncio.ensure_future(future, loop=self))

    asyncio.BaseEventLoop.run_until_complete = run_until_complete  # type: ignore[method-assign]
    asyncio.get_event_loop = _get_event_loop
    runner: Any = getattr(asyncio, "Runner", None)
    if runner is not None:
        runner.run = _outside(runner.run)
    os.register_at_fork(
        before=lambda: setattr(_forking, "loop", asyncio._get_running_loop() or clients[0].loop),
        after_in_child=_unshare_loop,
    )


def _outside(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, run in its own thread where a loop is running."""

    @functools.wraps(original)
    def run(*args: Any, **options: Any) -> Any:
        if asyncio._get_running_loop() is None:
            return original(*args, **options)
        return in_thread(original, *args, **options)

    return run


def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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


_forking = threading.local()
"""Holds the loop during a fork: in the child, asyncio no longer reports it."""


def _unshare_loop() -> None:
    """In a forked child: give the loop its own epoll and wake-up pipe.

    Both are shared after a fork. When the child's loop closes, it would unregister the parent's
    descriptors, and the parent would wait forever for replies.
    """
    loop = getattr(_forking, "loop", None)
    selector: Any = getattr(loop, "_selector", None)
    inherited = getattr(selector, "_selector", None)
    epoll = getattr(select, "epoll", None)
    if loop is None or loop.is_closed() or epoll is None or not isinstance(inherited, epoll):
        return
    fresh = epoll()
    # The same number, because the selector keeps using it.
    os.dup2(fresh.fileno(), inherited.fileno(), inheritable=False)
    fresh.close()
    for key in list(selector.get_map().values()):
        wanted = select.EPOLLIN if key.events & selectors.EVENT_READ else 0
        wanted |= select.EPOLLOUT if key.events & selectors.EVENT_WRITE else 0
        try:
            inherited.register(key.fd, wanted)
        except OSError:
            # It is closed, as the channel is in a child.
            selector.unregister(key.fileobj)
    loop._close_self_pipe()
    loop._make_self_pipe()


def _get_event_loop() -> asyncio.AbstractEventLoop:
    """Return this thread's loop; in the main thread create one if there is none.

    Newer Pythons warn or raise instead, but programs are still written for older ones.
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


def _run_nested(loop: Any, future: Any) -> Any:
    outer, waiting = asyncio.current_task(loop), len(loop._ready)
    if outer is not None:
        asyncio.tasks._leave_task(loop, outer)
    try:
        while not future.done():
            loop._run_once()
    finally:
        future._log_traceback = False
        if outer is not None:
            asyncio.tasks._enter_task(loop, outer)
        for _ in range(waiting - len(loop._ready)):
            loop.call_soon(bool)  # the outer pass counted what was ready before
    return future.result()


_install()
