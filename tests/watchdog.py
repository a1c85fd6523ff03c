"""A watchdog for the event loop: how long did one turn keep it from everything else?

Measured in CPU time, so that a busy machine is not taken for a slow bridge. A heartbeat has the
loop turn over all the time: what passes between two turns is then what the loop itself did, or what
a thread did that did not let it have the interpreter. The latter shows in the time of the whole
process alone. On a busy machine that also has what threads did while another program had the loop's
core, so it has a wider limit.
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
"""Seconds of the loop's own CPU time between two turns of it."""

MAX_HELD = 0.5
"""Seconds of the whole process's CPU time between two turns."""

HEARTBEAT_SECONDS = 0.01


class StalledError(AssertionError):
    """One turn of the event loop took too long."""


class Watchdog:
    """Makes an event loop, and measures its turns while it is `watching`.

    Attributes:
        worst: The longest turn so far, in seconds of the loop's own CPU time.
        held: The longest in seconds of the whole process's.
    """

    def __init__(self) -> None:
        self.worst = self.held = 0.0
        self._watching = False
        self._since = self._process_since = 0.0

    @property
    def backend(self) -> tuple[str, dict[str, Any]]:
        """What an `anyio_backend` fixture returns to have its tests run in such a loop."""
        return "asyncio", {"loop_factory": self.make_loop}

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self))

    def turned(self) -> None:
        now, process = time.thread_time(), time.process_time()
        if self._watching:
            self.worst = max(self.worst, now - self._since)
            self.held = max(self.held, process - self._process_since)
        self._since, self._process_since = now, process

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure what is done within; input is best made before.

        Raises:
            StalledError: Something kept the loop for too long.
        """
        loop = asyncio.get_running_loop()

        # The test's own objects, millions perhaps, are not what the bridge's garbage is among.
        gc.collect()
        gc.freeze()
        beating = True

        def beat() -> None:
            if beating:
                loop.call_later(HEARTBEAT_SECONDS, beat)

        beat()
        self.turned()
        self.worst, self.held, self._watching = 0.0, 0.0, True
        try:
            yield
            self.turned()
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
    """Where a loop waits for something to do, once in each turn."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watchdog.turned()
        return super().select(timeout)
