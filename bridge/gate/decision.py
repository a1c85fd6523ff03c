"""What is asked of a policy and what it answers: values, and how several answers become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bridge.model import Action, Effect, Json, Tool

Mask = Callable[[Json, Json], Json]
"""Takes arguments, and the schema that the tool has for them; returns them as they are shown."""

STRICTNESS: Mapping[Action, int] = {"allow": 0, "ask": 1, "deny": 2}

UNLISTED = "unlisted tool"
"""The rule that denies names of tools which only a server could make sense of."""

CHANGED = "changed tool"
"""The rule that asks about a tool which is not as it was when it was allowed; see `gate.pins`."""

REDEFINED = "changed server"
"""The rule that asks before a server starts which is defined otherwise than when it was allowed."""


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """A call that somebody wants to make.

    Attributes:
        arguments: As the server would get them.
        definition: The tool as its server describes it; None if it does not, or was never asked.
        server_definition: The digest of its server's definition; empty if that is not known.
    """

    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    definition: Tool | None = None
    server_definition: str = ""

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"

    @property
    def schema(self) -> Mapping[str, Json]:
        """The schema of the tool's arguments; empty if it is not known."""
        return {} if self.definition is None else self.definition.input_schema

    def unlisted(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those names of arguments that the schema does not have, if it lists any."""
        known = self.schema.get("properties")
        if not isinstance(known, Mapping):
            return ()
        return tuple(name for name in names if name not in known)


def unmasked(value: Json, schema: Json = None) -> Json:
    """Return arguments as they are: the mask of those who have none."""
    return value


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to become of a call.

    Attributes:
        rule: What decided, as it is shown and recorded ("rule 'no force'", "default for writes").
        reason: Why, if that is known.
        effect: What the call is taken to do.
        labels: Those of the tool.
        led: Earlier calls that led to it.
    """

    action: Action
    rule: str
    reason: str = ""
    effect: Effect = "write"
    labels: frozenset[str] = frozenset()
    led: tuple[str, ...] = ()


def strictest(first: Decision, *others: Decision | None) -> Decision:
    """Return the strictest of several decisions on a call; of equals the first.

    Args:
        first: The policy's own. What the call does, and its labels, are what it says, whichever
            decision is the strictest.
    """
    found = first
    for other in others:
        if other is not None and STRICTNESS[other.action] > STRICTNESS[found.action]:
            found = other
    if found is first:
        return first
    return replace(found, effect=first.effect, labels=first.labels)
