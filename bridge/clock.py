"""Time that can stand still.

Owns the arithmetic of a run's time: it passes while the program works, and not while a person is
asked a question. Everything that limits a run by time asks here, so that all of it stops at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio


def current_time() -> float:
    """Return `anyio.current_time()` in a tenth of its time: each call asks ten times."""
    return asyncio.get_running_loop().time()


class Clock:
    """One run's time. It runs from the start; who stops it must start it again."""

    def __init__(self) -> None:
        self._holds = 0
        self._stopped_at: float | None = None
        self._lost = 0.0
        self._limits: dict[anyio.CancelScope, float] = {}
        self._watchers: list[Callable[[bool], None]] = []

    @property
    def running(self) -> bool:
        """Whether time passes."""
        return self._stopped_at is None

    @property
    def stood(self) -> float:
        """Seconds for which it has stood still, in all."""
        since = 0.0 if self._stopped_at is None else current_time() - self._stopped_at
        return self._lost + since

    def now(self) -> float:
        """Return the time, in seconds from a moment that never changes."""
        now = current_time() if self._stopped_at is None else self._stopped_at
        return now - self._lost

    @contextmanager
    def stop(self) -> Iterator[None]:
        """Stand still; of several who want that, until the last has left."""
        self._holds += 1
        if self._holds == 1:
            self._stopped_at = current_time()
            self._tell()
        try:
            yield
        finally:
            self._holds -= 1
            if self._holds == 0:
                self._lost = self.stood
                self._stopped_at = None
                self._tell()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancel what is inside after so many seconds of this time."""
        with anyio.CancelScope() as scope:
            self._limits[scope] = self.now() + seconds
            self._aim(scope)
            try:
                yield scope
            finally:
                self._limits.pop(scope, None)

    def let_go(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Move a limit's end to so many seconds from now, also if this time stands still."""
        self._limits.pop(scope, None)
        scope.deadline = current_time() + seconds

    @contextmanager
    def watch(self, watcher: Callable[[bool], None]) -> Iterator[None]:
        """Call `watcher` whenever time stops (False) and goes on (True)."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _tell(self) -> None:
        for scope in self._limits:
            self._aim(scope)
        for watcher in tuple(self._watchers):
            watcher(self.running)

    def _aim(self, scope: anyio.CancelScope) -> None:
        end = self._limits[scope]
        scope.deadline = end + self._lost if self.running else math.inf
