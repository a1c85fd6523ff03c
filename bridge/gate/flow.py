"""Flow rules: which calls may follow which. Pure.

A call counts as read when it is sent, since an earlier call cannot have its result. So the calls
sent before a call decide on it, however long it waits for a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from bridge.gate.decision import Decision
from bridge.model import Json, Provenance
from bridge.settings.policy import FlowRule, Matcher, matcher

Calls = dict[str, int]
"""Counts of calls by tool. The empty name counts further tools."""


@dataclass(kw_only=True, eq=False)
class FlowState:
    """The servers called and labels read so far, by calls and by kept things.

    Kept things of `unknown` provenance may have any label, from any server.
    """

    labels: dict[str, Calls] = field(default_factory=dict)
    servers: dict[str, Calls] = field(default_factory=dict)
    unknown: Calls = field(default_factory=dict)

    def add_call(self, server: str, tool: str, labels: frozenset[str]) -> None:
        name = f"{server}.{tool}"
        _add(self.servers.setdefault(server, {}), name)
        for label in labels:
            _add(self.labels.setdefault(label, {}), name)

    def add_provenance(self, name: str, provenance: Provenance) -> bool:
        """Record that a kept thing was read, and return whether its provenance is new."""
        new = not self.knows(provenance)
        calls = [self.unknown] if provenance.anything else []
        calls += [self.servers.setdefault(server, {}) for server in sorted(provenance.servers)]
        calls += [self.labels.setdefault(label, {}) for label in sorted(provenance.labels)]
        for each in calls:
            if name not in each:
                _add(each, name)
        return new

    def provenance(self, run_id: str) -> Provenance | None:
        """Return the provenance of things that a run keeps now; None if it read nothing."""
        if not (self.labels or self.servers or self.unknown):
            return None
        return Provenance(
            run_id=run_id,
            labels=frozenset(self.labels),
            servers=frozenset(self.servers),
            anything=bool(self.unknown),
        )

    def knows(self, provenance: Provenance) -> bool:
        return (
            (bool(self.unknown) or not provenance.anything)
            and provenance.labels <= self.labels.keys()
            and provenance.servers <= self.servers.keys()
        )

    def absorb(self, other: FlowState) -> None:
        """Add the calls of another state, such as that of the run that made a plan."""
        _absorb(self.unknown, other.unknown)
        for mine, theirs in ((self.servers, other.servers), (self.labels, other.labels)):
            for name, calls in theirs.items():
                _absorb(mine.setdefault(name, {}), calls)

    def document(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def of(cls, document: Json) -> FlowState:
        """Return the state of a document. An invalid document means that everything was read."""
        state = cls()
        try:
            state.labels = {str(name): _calls(calls) for name, calls in document["labels"].items()}
            servers = document["servers"].items()
            state.servers = {str(name): _calls(calls) for name, calls in servers}
            state.unknown = _calls(document["unknown"])
        except (AttributeError, KeyError, TypeError, ValueError):
            state.unknown = {"an unreadable record": 1}
        return state

    def read(self, labels: Iterable[str]) -> bool:
        return bool(self.unknown) or all(label in self.labels for label in labels)

    def has_used(self, servers: Matcher) -> bool:
        return bool(self.unknown) or any(servers(server) for server in self.servers)

    def list_causes(self, labels: Iterable[str], servers: Matcher | None) -> tuple[str, ...]:
        found = [(label, self.labels.get(label, {})) for label in labels]
        if servers is not None:
            found += [(server, calls) for server, calls in self.servers.items() if servers(server)]
        # Any of these may be the reason.
        found.append(("of unknown origin", self.unknown))
        shown: dict[str, None] = {}
        for what, calls in found:
            for name, count in calls.items():
                times = name if count == 1 else f"{name} ({count:,} times)"
                shown[times if name else f"{count:,} more ({what})"] = None
        return tuple(shown)


def _add(calls: Calls, name: str, count: int = 1) -> None:
    # A server can invent any number of names.
    if name not in calls and len(calls) >= 5:
        name = ""
    calls[name] = calls.get(name, 0) + count


def _absorb(calls: Calls, others: Calls) -> None:
    for name, count in others.items():
        _add(calls, name, count)


def _calls(document: Json) -> Calls:
    calls: Calls = {}
    _absorb(calls, {str(name): int(count) for name, count in document.items()})
    return calls


class _CompiledFlowRule:
    def __init__(self, rule: FlowRule) -> None:
        self.rule = rule
        self.after = sorted(rule.after)
        self.after_servers = matcher(*rule.after_servers) if rule.after_servers else None
        self.to_servers = matcher(*rule.to_servers) if rule.to_servers else None

    def about(self, server: str, labels: frozenset[str]) -> bool:
        named = self.to_servers is not None and self.to_servers(server)
        return named or not self.rule.to.isdisjoint(labels)

    def begun(self, state: FlowState) -> bool:
        return state.read(self.after) and (
            self.after_servers is None or state.has_used(self.after_servers)
        )


class Flow:
    """The flow rules. The first matching rule decides."""

    def __init__(self, rules: Sequence[FlowRule] = ()) -> None:
        self._rules = tuple(_CompiledFlowRule(rule) for rule in rules)

    def watches(self, state: FlowState) -> bool:
        return bool(state.labels or state.unknown) or any(
            ready.after_servers is not None and state.has_used(ready.after_servers)
            for ready in self._rules
        )

    def judges(self, server: str, labels: frozenset[str]) -> bool:
        """Return whether a rule could apply to such a call."""
        return any(ready.about(server, labels) for ready in self._rules)

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        """Decide on a call by the calls before it; None if no rule applies."""
        for ready in self._rules:
            if ready.about(server, labels) and ready.begun(state):
                return Decision(
                    action=ready.rule.action,
                    rule=f"flow rule '{ready.rule.name}'",
                    reason=ready.rule.reason,
                    labels=labels,
                    led=state.list_causes(ready.after, ready.after_servers),
                )
        return None
