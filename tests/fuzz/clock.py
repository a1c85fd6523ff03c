"""An event loop whose clock advances only when no task can run.

Timeouts then take no time, and the order of events is deterministic. `idle` returns when every task
waits; the clock does not advance before.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

STUCK_SECONDS = 30.0
"""Real seconds without an event until a test fails."""

_TICK = 1e-6
"""Added to each jump, so that rounding leaves no timer just short of its time."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self._loop.wake_idle():
            return []
        if timeout is not None:
            self._loop.advance(timeout + _TICK)
            return []
        found = super().select(STUCK_SECONDS)  # for threads
        if not found:
            raise AssertionError("every task waits for what will never happen")
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._idle: asyncio.Future[None] | None = None
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def idle(self) -> None:
        self._idle = self.create_future()
        await self._idle

    def wake_idle(self) -> bool:
        waiter, self._idle = self._idle, None
        if waiter is None or waiter.done():
            return False
        waiter.set_result(None)
        return True


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def run(main: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})
