"""The counts of a run's calls by outcome, and the time that calls were under way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bridge.gate.decision import CallFacts
from bridge.model import CallCount


class Tally:
    """Counts the calls of one run by outcome."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._under_way = 0
        self._since = 0.0
        self._busy = 0.0
        self._counts: dict[str, Counter[tuple[str, str, str]]] = {}
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
        return self._busy + (self._now() - self._since if self._under_way else 0.0)

    def send(self, call: CallFacts) -> None:
        self._count("sent", call)

    def replay(self, call: CallFacts) -> None:
        self._count("replayed", call)

    def refuse(self, call: CallFacts, why: str) -> None:
        self._count("refused", call, why)

    def lose(self, call: CallFacts, why: str) -> None:
        self._count("unknown", call, why)

    @property
    def sent(self) -> tuple[CallCount, ...]:
        return self._counted("sent")

    @property
    def replayed(self) -> tuple[CallCount, ...]:
        return self._counted("replayed")

    @property
    def refused(self) -> tuple[CallCount, ...]:
        return self._counted("refused")

    @property
    def unknown(self) -> tuple[CallCount, ...]:
        return self._counted("unknown")

    def _count(self, outcome: str, call: CallFacts, why: str = "") -> None:
        counts = self._counts.setdefault(outcome, Counter())
        key = (call.server, call.tool, why)
        if key not in counts and len(counts) >= 100:
            # Programs make up names.
            key = ("", "", "others")
        counts[key] += 1

    def _counted(self, outcome: str) -> tuple[CallCount, ...]:
        return tuple(
            CallCount(server=server, tool=tool, count=count, why=why)
            for (server, tool, why), count in self._counts.get(outcome, {}).items()
        )
