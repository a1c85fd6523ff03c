"""Which calls a policy allows. Pure.

Owns the matching of rules, the defaults where none matches, and what is believed of a tool.
"""

from __future__ import annotations

from bridge.gate.decision import CallFacts, Decision
from bridge.model import Effect, Tool
from bridge.settings.policy import PolicySpec

OPEN = "no policy"
"""The rule where there is none."""


class Policy:
    """A policy, made ready to be asked often."""

    def __init__(self, spec: PolicySpec | None = None) -> None:
        self.spec = spec or PolicySpec()

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        """Decide on a call by the rules and defaults alone.

        Args:
            effect: What it is known to do, whoever says otherwise.
        """
        return Decision(
            action="allow",
            rule=OPEN,
            effect=effect or self.effect(call.server, call.tool, call.definition),
            labels=self.labels(call.server, call.tool, call.definition),
        )

    def effect(self, server: str, tool: str, definition: Tool | None) -> Effect:
        """Return what a tool is taken to do."""
        return "write"

    def labels(self, server: str, tool: str, definition: Tool | None) -> frozenset[str]:
        """Return a tool's labels, for the flow rules."""
        return frozenset()
