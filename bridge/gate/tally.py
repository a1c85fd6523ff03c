"""The counts of a run's calls by outcome, and the time that calls were under way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bridge.gate.decision import CallFacts
from bridge.model import CallCount

MAX_KINDS = 100
"""Kinds of calls that are counted apart; the rest is counted together, without names."""


class Tally:
    """Counts the calls of one run by outcome."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._under_way = 0
        self._since = 0.0
        self._busy = 0.0
        self._replayed: Counter[tuple[str, str, str]] = Counter()
        self._refused: Counter[tuple[str, str, str]] = Counter()
        self._unknown: Counter[tuple[str, str, str]] = Counter()
        self._sent: Counter[tuple[str, str, str]] = Counter()
        self.made: Counter[str] = Counter()
        self.changing = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count the time in which at least one call is under way."""
        self._under_way += 1
        if self._under_way == 1:
            self._since = self._now()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy += self._now() - self._since

    @property
    def busy_seconds(self) -> float:
        """Seconds in which at least one call was under way."""
        return self._busy + (self._now() - self._since if self._under_way else 0.0)

    def send(self, call: CallFacts) -> None:
        _count(self._sent, call, "")

    def replay(self, call: CallFacts) -> None:
        """Count a call that was answered from a journal."""
        _count(self._replayed, call, "")

    def refuse(self, call: CallFacts, why: str) -> None:
        """Count a call that was not allowed."""
        _count(self._refused, call, why)

    def lose(self, call: CallFacts, why: str) -> None:
        _count(self._unknown, call, why)

    @property
    def sent(self) -> tuple[CallCount, ...]:
        return _counts(self._sent)

    @property
    def replayed(self) -> tuple[CallCount, ...]:
        """Calls that were answered from a journal."""
        return _counts(self._replayed)

    @property
    def refused(self) -> tuple[CallCount, ...]:
        return _counts(self._refused)

    @property
    def unknown(self) -> tuple[CallCount, ...]:
        return _counts(self._unknown)


def _count(counter: Counter[tuple[str, str, str]], call: CallFacts, why: str) -> None:
    key = (call.server, call.tool, why)
    if key not in counter and len(counter) >= MAX_KINDS:
        key = ("", "", "others")
    counter[key] += 1


def _counts(counter: Counter[tuple[str, str, str]]) -> tuple[CallCount, ...]:
    return tuple(
        CallCount(server=server, tool=tool, count=count, why=why)
        for (server, tool, why), count in counter.items()
    )
