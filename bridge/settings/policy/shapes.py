"""What a policy may say. Shapes only; what it means for a call is `bridge.gate.policy`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bridge.model import Action, Effect, Json

Test = Literal["is", "in", "glob", "under", "lt", "le", "gt", "ge", "present"]

DefaultFor = Literal["read", "write", "destructive", "untrusted"]
"""What a default is for: what a trusted server, or the policy, says of a tool; "untrusted" if
nobody does whom the policy believes."""


Asking = Literal["elicitation", "sampling"]
"""What servers ask by themselves: the user, or the user's model."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something about an argument.

    Attributes:
        path: Names of keys from the outside in; "*" stands for every item of a list or object.
        test: How it is compared.
        value: With what: a text, number or truth value; a tuple of them for "in", of globs for
            "glob", of normal paths for "under".
        negated: Whether the opposite is meant, of each value by itself.
    """

    path: tuple[str, ...]
    test: Test
    value: Json = None
    negated: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule; the first that matches a call decides.

    Attributes:
        name: As decisions name it.
        servers, tools: Globs, of which one has to match.
        effects: Of calls that it is about; empty for all.
        when: All of them have to hold. Of several values at a path all have to hold in a rule that
            allows, and one is enough in any other, so that nothing slips through between others.
        reason: Shown with the decision.
        digest: Of the tool as it was when the rule was made; the rule matches no other. Empty if
            the rule does not depend on it.
        place: Where it stands, for errors and explanations.
    """

    name: str
    action: Action
    servers: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)
    effects: frozenset[Effect] = frozenset()
    when: tuple[Condition, ...] = ()
    reason: str = ""
    digest: str = ""
    # A rule stays what it is when another is written in front of it.
    place: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """What the user says of some tools of a server; the first whose glob matches counts."""

    tools: str
    effect: Effect | None = None
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ServerPolicy:
    """What the user says of some servers; the first whose glob matches counts.

    Attributes:
        trust: Whether what the server says of its own tools (annotations) is believed.
        start: Whether it is started, or connected to; None for what holds for all.
        labels: For the flow rules, of all its tools.
        elicitation, sampling: What is done with its questions; None for what the policy says.
    """

    servers: str
    trust: bool = False
    elicitation: Action | None = None
    sampling: Action | None = None
    start: Action | None = None
    labels: frozenset[str] = frozenset()
    tools: tuple[ToolPolicy, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FlowRule:
    """After calls with all of some labels, a call with one of others is decided so.

    Attributes:
        after, to: Labels.
        after_servers, to_servers: Globs of servers that count like these labels; for `after` one
            of them is one more thing that has to have happened.
    """

    name: str
    action: Action
    after: frozenset[str] = frozenset()
    to: frozenset[str] = frozenset()
    after_servers: tuple[str, ...] = ()
    to_servers: tuple[str, ...] = ()
    reason: str = ""


UNTRUSTED_INPUT = "untrusted-input"
PRIVATE_DATA = "private-data"
EXFILTRATION = "exfiltration"
LABELS = (UNTRUSTED_INPUT, PRIVATE_DATA, EXFILTRATION)
"""Labels that mean something without further rules; others may be invented."""

DETECTORS = ("email", "phone", "iban", "card", "ip")
"""Of personal data."""

LETHAL = FlowRule(
    name="lethal-combination",
    action="ask",
    after=frozenset({UNTRUSTED_INPUT, PRIVATE_DATA}),
    to=frozenset({EXFILTRATION}),
    reason="text that anybody could have written may steer where private data goes",
)
"""In force unless the policy has a flow rule of this name."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """How much is allowed; None for as much as the limits of a run.

    Attributes:
        run_calls, run_bytes: Of one run: calls, and bytes of what they return.
        server_calls: Calls to a server in one run.
        per_minute: Glob of servers to calls per minute, over all runs; the first glob counts.
    """

    run_calls: int | None = None
    run_bytes: int | None = None
    server_calls: int | None = None
    per_minute: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Which personal data is replaced by tokens on its way into a sandbox.

    Attributes:
        detect: Names of detectors.
        servers: Globs of servers in whose results it is looked for.
        reveal_to: Globs of servers that get the data back in place of tokens.
    """

    detect: tuple[str, ...] = ()
    servers: tuple[str, ...] = ("*",)
    reveal_to: tuple[str, ...] = ("*",)


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """A whole policy.

    Attributes:
        present: Whether there is one. Without, every call is allowed and nobody is believed.
        skills: What is done when a program uses a saved skill that nobody has reviewed; with
            "deny" there are no skills.
        elicitation, sampling: What is done with servers' questions to the user, and to the model.
        start: Whether servers are started, or connected to, of which nothing else is said.
        pin: Whether a tool that changed since it was first allowed, and a server that has another
            definition than when it was first started, is asked about again.
        path: The file; changes are written there. None where there is none.
    """

    present: bool = False
    defaults: Mapping[DefaultFor, Action] = field(
        default_factory=lambda: {
            "read": "allow",
            "write": "ask",
            "destructive": "ask",
            "untrusted": "ask",
        }
    )
    rules: tuple[Rule, ...] = ()
    servers: tuple[ServerPolicy, ...] = ()
    flows: tuple[FlowRule, ...] = (LETHAL,)
    budgets: Budgets = field(default_factory=Budgets)
    privacy: Privacy = field(default_factory=Privacy)
    skills: Action = "ask"
    elicitation: Action = "allow"
    sampling: Action = "allow"
    start: Action = "allow"
    pin: bool = True
    path: Path | None = None
