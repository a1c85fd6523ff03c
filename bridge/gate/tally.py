"""Counts a run's calls by outcome, measures their time, and enforces the policy's budgets."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from bridge.errors import RefusedError
from bridge.gate.decision import CallFacts
from bridge.model import CallCount
from bridge.settings.policy import Budgets, matcher

CallOutcome = Literal["sent", "replayed", "refused", "unknown"]


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

    @property
    def sent(self) -> tuple[CallCount, ...]:
        return self._counts_of("sent")

    @property
    def replayed(self) -> tuple[CallCount, ...]:
        return self._counts_of("replayed")

    @property
    def refused(self) -> tuple[CallCount, ...]:
        return self._counts_of("refused")

    @property
    def unknown(self) -> tuple[CallCount, ...]:
        return self._counts_of("unknown")

    def count(self, outcome: CallOutcome, call: CallFacts, why: str = "") -> None:
        if outcome == "sent":
            self.made[call.server] += 1
        counts = self._counts.setdefault(outcome, Counter())
        key = (call.server, call.tool, why)
        if key not in counts and len(counts) >= 100:
            # Programs invent names.
            key = ("", "", "others")
        counts[key] += 1

    def _counts_of(self, outcome: CallOutcome) -> tuple[CallCount, ...]:
        return tuple(
            CallCount(server=server, tool=tool, count=count, why=why)
            for (server, tool, why), count in self._counts.get(outcome, {}).items()
        )


WINDOW = 60  # Seconds of a minute.


class Rates:
    """Calls per minute and server, over all runs of a bridge.

    Calls without a limit count too, so that a new limit applies to them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    def wait(self, server: str, limit: int) -> float:
        """Return the seconds until a server may be called, or 0."""
        recent, now = self._recent[server], self._now()
        while recent and recent[0] + WINDOW <= now:
            recent.popleft()
        return recent[-limit] + WINDOW - now if len(recent) >= limit else 0.0

    def count(self, server: str) -> None:
        recent, now = self._recent[server], self._now()
        recent.append(now)
        while recent[0] + WINDOW <= now:
            recent.popleft()


class RunBudget:
    """The rest of one run's budgets."""

    def __init__(self, budgets: Budgets | None = None, rates: Rates | None = None) -> None:
        self._budgets = budgets or Budgets()
        self._rates = rates or Rates()
        self._bytes = 0
        self._made: Counter[str] = Counter()

    def spend(self, server: str) -> None:
        """Count the next call. A refused call does not count."""
        budgets = self._budgets
        made, all_made = self._made[server], self._made.total()
        if budgets.run_calls is not None and all_made >= budgets.run_calls:
            raise _used_up(f"made all of the {budgets.run_calls:,} calls", "run_calls")
        if budgets.server_calls is not None and made >= budgets.server_calls:
            what = f"made all of the {budgets.server_calls:,} calls to {server!r}"
            raise _used_up(what, "server_calls")
        if budgets.run_bytes is not None and self._bytes >= budgets.run_bytes:
            what = f"been returned {self._bytes:,} bytes, of the {budgets.run_bytes:,}"
            raise _used_up(what, "run_bytes")
        rates = (rate for rate in budgets.per_minute if matcher(rate[0])(server))
        glob, limit = next(rates, ("", None))
        if limit is not None and (wait := self._rates.wait(server, limit)):
            raise RefusedError(
                f"All runs together have made the {limit:,} calls a minute that {server!r} may "
                f"have (budgets.per_minute {glob!r}). There is room again in {math.ceil(wait)} s.",
                code="call_budget",
            )
        self._rates.count(server)
        self._made[server] += 1

    def took_in(self, size: int) -> None:
        self._bytes += size


def _used_up(what: str, budget: str) -> RefusedError:
    message = f"This run has {what} it may (budgets.{budget} of the policy)."
    remedy = "Use the results so far, or continue in another run."
    return RefusedError(message, remedy=remedy, code="call_budget")
