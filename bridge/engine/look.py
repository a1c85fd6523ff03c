"""Looking whether the configuration has changed, before every run.

Owns the choice of where to look from. A thread costs more than the looking does; a home directory
on a slow network costs more than a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio.to_thread

QUICK_SECONDS = 0.002
"""To look at the configuration's files takes a twentieth of this where they are on a disk; what
took longer is next time done in a thread, where nothing else has to wait for it."""


class Look:
    """Takes a stamp: from here if the last one was quick, else, as the first, from a thread."""

    def __init__(
        self, stamp: Callable[[], object], *, quick_seconds: float = QUICK_SECONDS
    ) -> None:
        self._stamp = stamp
        self._quick_seconds = quick_seconds
        self._last_seconds = quick_seconds

    async def take(self) -> object:
        """Return the configuration's state; equal states mean that nothing changed."""
        started = time.perf_counter()
        if self._last_seconds < self._quick_seconds:
            stamp = self._stamp()
        else:
            stamp = await anyio.to_thread.run_sync(self._stamp)
        self._last_seconds = time.perf_counter() - started
        return stamp
