"""Calls held back, the placeholders that stand for their results, and plans made of them.

Owns the tokens that placeholders travel as, their resolution, the plans' bounds, expiry and owners.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.gate.decision import CallFacts, Decision
from bridge.model import Json, Plan


class Held(dict[str, Json]):
    """What a program gets for a call that is held back: the wire shape of a placeholder."""


class Holding:
    """The calls that one run in plan mode holds back."""

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        """Tell whether arguments hold placeholders of this run."""
        return False

    def hold(self, call: CallFacts, decision: Decision) -> Held:
        """Hold a call back and return `{"held": {"plan": ..., "number": ..., "call": ...}}`.

        Raises:
            CallBudgetError: The plan holds all that it may.
            InvalidRequestError: An argument holds a placeholder that the program has changed.
        """
        return Held(held={})

    @property
    def count(self) -> int:
        """How many it holds."""
        return 0


class Plans:
    """Plans that can be applied, each once, by whoever made it."""

    def keep(self, holding: Holding, owner: str, *, run_id: str, stopped: str) -> Plan:
        """Keep what a run held back."""
        return Plan(plan_id="", seconds=0)
