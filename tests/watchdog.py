"""A watchdog for the event loop: measures how long one turn blocks it.

Measures CPU time, so that a busy machine does not count as a slow bridge. A heartbeat keeps the
loop turning. The loop's own CPU time shows its own work. The process's CPU time also shows threads
that hold the interpreter lock; it includes unrelated threads, so it has a wider limit.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_STALL = 0.25
"""Seconds of the loop's CPU time in one turn."""

MAX_HELD = 0.5
"""Seconds of the process's CPU time in one turn."""

HEARTBEAT_SECONDS = 0.01


class StalledError(AssertionError):
    """One turn of the event loop took too long."""


class Watchdog:
    """Creates an event loop, and measures its turns while it is `watching`.

    Attributes:
        worst: The longest turn so far, in seconds of the loop's CPU time.
        held: The longest turn so far, in seconds of the process's CPU time.
    """

    def __init__(self) -> None:
        self.worst = self.held = 0.0
        self._watching = False
        self._since = self._process_since = 0.0

    @property
    def backend(self) -> tuple[str, dict[str, Any]]:
        """The value of an `anyio_backend` fixture for tests in such a loop."""
        return "asyncio", {"loop_factory": self.make_loop}

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self))

    def note_turn(self) -> None:
        now, process = time.thread_time(), time.process_time()
        if self._watching:
            self.worst = max(self.worst, now - self._since)
            self.held = max(self.held, process - self._process_since)
        self._since, self._process_since = now, process

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the turns within the context. Build large inputs before.

        Raises:
            StalledError: A turn took too long.
        """
        loop = asyncio.get_running_loop()

        # Exclude the test's own objects from garbage collections.
        gc.collect()
        gc.freeze()
        beating = True

        def beat() -> None:
            if beating:
                loop.call_later(HEARTBEAT_SECONDS, beat)

        beat()
        self.note_turn()
        self.worst, self.held, self._watching = 0.0, 0.0, True
        try:
            yield
            self.note_turn()
        finally:
            self._watching = False
            beating = False
            gc.unfreeze()
        if self.worst > MAX_STALL or self.held > MAX_HELD:
            message = (
                f"the event loop stood still for {self.worst:.3f} s of its own CPU time, and for "
                f"{self.held:.3f} s of the process's"
            )
            raise StalledError(message)


class _Selector(selectors.DefaultSelector):
    """A selector that reports each turn of the loop."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watchdog.note_turn()
        return super().select(timeout)
