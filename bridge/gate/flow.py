"""What earlier calls mean for later ones. Pure.

Owns what a run, or a session, has taken in so far, and the rules on where it may go then.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.gate.decision import Decision
from bridge.settings.policy import FlowRule


class FlowState:
    """What was called so far, as far as flow rules care."""

    def note(self, server: str, tool: str, labels: frozenset[str]) -> None:
        """Take note of a call that goes out, or is answered from a journal."""


class Flow:
    """The flow rules."""

    def __init__(self, rules: Sequence[FlowRule] = ()) -> None:
        self._rules = tuple(rules)

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        """Decide on a call by what came before it; None if that does not matter."""
        return None
