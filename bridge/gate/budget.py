"""How much a run may call. Owns the counts; the limits are the policy's."""

from __future__ import annotations

import time
from collections.abc import Callable

from bridge.settings.policy import Budgets


class Rates:
    """Calls per minute and server, over all runs of a bridge."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now


class RunBudget:
    """What one run may still do."""

    def __init__(self, budgets: Budgets | None = None, rates: Rates | None = None) -> None:
        self._budgets = budgets or Budgets()
        self._rates = rates or Rates()

    def spend(self, server: str) -> None:
        """Count a call that is about to go out.

        Raises:
            CallBudgetError: It may not any more; says which budget is used up, and when or how
                there is room again.
        """

    def took_in(self, size: int) -> None:
        """Count the bytes of a result; what goes beyond the budget refuses the calls after it."""
