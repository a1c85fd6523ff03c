"""Calls to be decided on, and decisions: values, and the strictest of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bridge.model import Action, Effect, Json, Tool

Mask = Callable[[Json, Json], Json]
"""Takes arguments and their schema, and returns the arguments without secrets."""

STRICTNESS: Mapping[Action, int] = {"allow": 0, "ask": 1, "deny": 2}

UNLISTED = "unlisted tool"  # The rule that denies tools that their server does not list.

CHANGED = "changed tool"
"""The rule that asks about a tool that has changed since it was allowed; see `gate.pins`."""

REDEFINED = "changed server"
"""The rule that asks about a server whose definition has changed since it was allowed."""


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """A call to be decided on.

    Attributes:
        arguments: As the server would get them.
        definition: The tool as its server describes it; None if that is not known.
        server_definition: Digest of its server's definition; empty if that is not known.
        own: Whether a file of the user's, not of a project, defines its server.
    """

    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    definition: Tool | None = None
    server_definition: str = ""
    own: bool = False

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"

    @property
    def schema(self) -> Mapping[str, Json]:
        """The schema of the tool's arguments; empty if it is not known."""
        return {} if self.definition is None else self.definition.input_schema

    @property
    def says_it_reads(self) -> bool:
        """Whether a server of the user's says that the tool only reads."""
        return self.own and self.definition is not None and self.definition.says_it_reads

    def unlisted(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that are not among the schema's properties, if it has any."""
        known = self.schema.get("properties")
        if not isinstance(known, Mapping):
            return ()
        return tuple(name for name in names if name not in known)


def unmasked(value: Json, schema: Json = None) -> Json:
    """Return arguments unchanged: the mask where there are no secrets."""
    return value


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a call is allowed, asked about or denied, and why.

    Attributes:
        rule: Name of what decided, shown and recorded ("rule 'no force'", "default for writes").
        reason: Of the rule; may be empty.
        effect: That the call is assumed to have.
        labels: Of the tool.
        led: Earlier calls because of which a flow rule decided.
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
        first: The policy's own; its effect and labels are kept, whichever is the strictest.
    """
    found = first
    for other in others:
        if other is not None and STRICTNESS[other.action] > STRICTNESS[found.action]:
            found = other
    if found is first:
        return first
    return replace(found, effect=first.effect, labels=first.labels)
