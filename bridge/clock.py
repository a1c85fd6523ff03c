"""A run's clock, which stops while the user answers a question, and times as records have them.

All time limits of a run use its clock, so that they stop together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import anyio


def current_time() -> float:
    """Return `anyio.current_time()`, in a tenth of its time. Each call needs it ten times."""
    return asyncio.get_running_loop().time()


def utc_text(seconds: float) -> str:
    """Return a Unix time in UTC with milliseconds, as records have it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class Clock:
    """A stoppable clock, which starts when it is created."""

    def __init__(self) -> None:
        self._holds = 0
        self._stopped_at: float | None = None
        self._lost = 0.0
        self._limits: dict[anyio.CancelScope, float] = {}

    @property
    def running(self) -> bool:
        return self._stopped_at is None

    @property
    def stopped_seconds(self) -> float:
        since = 0.0 if self._stopped_at is None else current_time() - self._stopped_at
        return self._lost + since

    def now(self) -> float:
        """Return the seconds since a fixed point, without stopped time."""
        now = current_time() if self._stopped_at is None else self._stopped_at
        return now - self._lost

    @contextmanager
    def stop(self) -> Iterator[None]:
        """Stop the clock within the context. Nested stops end with the last context."""
        self._holds += 1
        if self._holds == 1:
            self._stopped_at = current_time()
            self._notify()
        try:
            yield
        finally:
            self._holds -= 1
            if self._holds == 0:
                self._lost = self.stopped_seconds
                self._stopped_at = None
                self._notify()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            self.move_limit(scope, seconds)
            try:
                yield scope
            finally:
                self._limits.pop(scope, None)

    def move_limit(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Set an open limit to end in `seconds`."""
        self._limits[scope] = self.now() + seconds
        self._set_deadline(scope)

    def _notify(self) -> None:
        for scope in self._limits:
            self._set_deadline(scope)

    def _set_deadline(self, scope: anyio.CancelScope) -> None:
        end = self._limits[scope]
        scope.deadline = end + self._lost if self.running else math.inf
