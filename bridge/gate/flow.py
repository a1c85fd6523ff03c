"""What earlier calls mean for later ones. Pure.

Owns what a run, or a session, has taken in so far, and the rules on where it may go then.

A call counts from when it goes out. What it returns cannot be in the arguments of a call that was
made before that, so a call is judged by what had gone out when it was made, however long it then
waits for a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bridge.gate.decision import Decision
from bridge.model import Json, Provenance
from bridge.settings.globs import Matcher, any_matcher
from bridge.settings.policy import FlowRule

MAX_SERVERS = 500
"""Servers told apart. Beyond, every server counts as one that may have been called."""

MAX_LABELS = 500
"""Labels told apart; a policy has fewer. Beyond, every label counts as read."""

MAX_CALLERS = 5
"""Tools remembered by name for each server and each label: the first, which were how it began."""

MAX_LED = 12
"""Calls that a decision lists."""

MAX_SHOWN_CHARS = 120
"""Of a call's name in a decision."""


_Calls = dict[str, int]
"""How often calls that have something in common were made: the first tools by name, and the others
together under the empty name."""


class FlowState:
    """What was called so far, and what was found that had been kept, as far as flow rules care."""

    def __init__(self) -> None:
        self._labels: dict[str, _Calls] = {}
        self._servers: dict[str, _Calls] = {}
        self._more_labels = False
        self._more_servers = False
        # What was found of which nobody knows what its run had read.
        self._unknown: _Calls = {}

    def note(self, server: str, tool: str, labels: frozenset[str]) -> None:
        """Take note of a call that goes out, or is answered from a journal."""
        name = _shown(f"{server}.{tool}")
        _add(self._of_server(server), name)
        for label in labels:
            _add(self._of_label(label), name)

    def find(self, name: str, provenance: Provenance) -> bool:
        """Take note of something kept that comes in; return whether that changes anything.

        What its run had read counts as read here.

        Args:
            name: As decisions list it among the calls that led to them.
        """
        name, news = _shown(name), not self.knows(provenance)
        if provenance.anything:
            self._more_labels = self._more_servers = True
            _mention(self._unknown, name)
        for server in sorted(provenance.servers):
            _mention(self._of_server(server), name)
        for label in sorted(provenance.labels):
            _mention(self._of_label(label), name)
        return news

    @property
    def has_labels(self) -> bool:
        """Whether anything with a label, or nobody knows what, was read."""
        return bool(self._labels) or self._more_labels

    def provenance(self, run_id: str) -> Provenance | None:
        """Return what something comes with that a run keeps now; None if nothing was read."""
        anything = self._more_labels or self._more_servers
        if not (self._labels or self._servers or anything):
            return None
        return Provenance(
            run_id=run_id,
            labels=frozenset(self._labels),
            servers=frozenset(self._servers),
            anything=anything,
        )

    def knows(self, provenance: Provenance) -> bool:
        """Tell whether something kept that comes in changes nothing."""
        if provenance.anything and not (self._more_labels and self._more_servers):
            return False
        full = self._more_labels and len(self._labels) >= MAX_LABELS
        many = self._more_servers and len(self._servers) >= MAX_SERVERS
        return (full or provenance.labels <= self._labels.keys()) and (
            many or provenance.servers <= self._servers.keys()
        )

    def absorb(self, other: FlowState) -> None:
        """Take in what was noted elsewhere: in the run that a plan was made by, for one."""
        self._more_labels |= other._more_labels
        self._more_servers |= other._more_servers
        _absorb(self._unknown, other._unknown)
        for server, theirs in other._servers.items():
            _absorb(self._of_server(server), theirs)
        for label, theirs in other._labels.items():
            _absorb(self._of_label(label), theirs)

    def document(self) -> dict[str, Json]:
        """Return it as JSON, for a session that is put away."""
        return {
            "labels": {name: dict(calls) for name, calls in self._labels.items()},
            "servers": {name: dict(calls) for name, calls in self._servers.items()},
            "moreLabels": self._more_labels,
            "moreServers": self._more_servers,
            "unknown": dict(self._unknown),
        }

    @classmethod
    def of(cls, document: Json) -> FlowState:
        """Return what `document` said; of what says nothing, anything may have been read."""
        state = cls()
        try:
            state._labels = _tables(document["labels"], MAX_LABELS)
            state._servers = _tables(document["servers"], MAX_SERVERS)
            state._more_labels = document["moreLabels"] is not False
            state._more_servers = document["moreServers"] is not False
            state._unknown = _calls(document["unknown"])
        except (AttributeError, KeyError, TypeError, ValueError):
            state._more_labels = state._more_servers = True
        return state

    def read(self, labels: Iterable[str]) -> bool:
        """Tell whether all of some labels have been read."""
        return all(label in self._labels or self._more_labels for label in labels)

    def used(self, servers: Matcher) -> bool:
        """Tell whether one of some servers has been called."""
        return self._more_servers or any(servers(server) for server in self._servers)

    def led(self, labels: Iterable[str], servers: Matcher | None) -> tuple[str, ...]:
        """Return the calls with some labels, and those to some servers, as they are shown."""
        found = [(label, self._labels.get(label)) for label in labels]
        if servers is not None:
            found += [(server, calls) for server, calls in self._servers.items() if servers(server)]
        # Of which any may have been what led there.
        found.append(("of unknown origin", self._unknown))
        shown: dict[str, None] = {}
        for what, calls in found:
            if calls is None:
                continue
            for name, count in calls.items():
                if not name:
                    shown[f"{count:,} more ({what})"] = None
                else:
                    shown[name if count == 1 else f"{name} ({count:,} times)"] = None
        names = list(shown)
        if len(names) > MAX_LED:
            names = [*names[: MAX_LED - 1], f"and {len(names) - MAX_LED + 1:,} more"]
        return tuple(names)

    def _of_server(self, server: str) -> _Calls | None:
        calls = _of(self._servers, server, MAX_SERVERS)
        self._more_servers |= calls is None
        return calls

    def _of_label(self, label: str) -> _Calls | None:
        calls = _of(self._labels, label, MAX_LABELS)
        self._more_labels |= calls is None
        return calls


def _add(calls: _Calls | None, name: str, count: int = 1) -> None:
    """Count a call, unless what it would be counted with is beyond the bounds."""
    if calls is not None:
        if name not in calls and len(calls) >= MAX_CALLERS:
            name = ""
        calls[name] = calls.get(name, 0) + count


def _mention(calls: _Calls | None, name: str) -> None:
    """Have a call among others, however often it is said."""
    if calls is not None and name not in calls:
        _add(calls, name)


def _absorb(calls: _Calls | None, others: _Calls) -> None:
    for name, count in others.items():
        _add(calls, name, count)


def _calls(document: Json) -> _Calls:
    calls: _Calls = {}
    _absorb(calls, {str(name): int(count) for name, count in document.items()})
    return calls


def _shown(name: str) -> str:
    return name if len(name) <= MAX_SHOWN_CHARS else f"{name[:MAX_SHOWN_CHARS]}..."


def _of(table: dict[str, _Calls], key: str, most: int) -> _Calls | None:
    found = table.get(key)
    if found is None and len(table) < most:
        found = table[key] = {}
    return found


def _tables(document: Mapping[str, Json], most: int) -> dict[str, _Calls]:
    found = {str(name): _calls(calls) for name, calls in document.items()}
    if len(found) > most:
        raise ValueError(f"more than {most} names")
    return found


class _Ready:
    """A flow rule, made ready to be asked often."""

    __slots__ = ("after", "after_servers", "rule", "title", "to", "to_servers")

    def __init__(self, rule: FlowRule) -> None:
        self.rule = rule
        self.title = f"flow rule '{rule.name}'"
        self.after = tuple(sorted(rule.after))
        self.after_servers = any_matcher(rule.after_servers) if rule.after_servers else None
        self.to = rule.to
        self.to_servers = any_matcher(rule.to_servers) if rule.to_servers else None

    def about(self, server: str, labels: frozenset[str]) -> bool:
        if not self.to.isdisjoint(labels):
            return True
        return self.to_servers is not None and self.to_servers(server)

    def begun(self, state: FlowState) -> bool:
        if not state.read(self.after):
            return False
        return self.after_servers is None or state.used(self.after_servers)


class Flow:
    """The flow rules. Of those that are about a call and have begun, the first decides."""

    def __init__(self, rules: Sequence[FlowRule] = ()) -> None:
        self._rules = tuple(_Ready(rule) for rule in rules)

    def decide(self, state: FlowState, server: str, labels: frozenset[str]) -> Decision | None:
        """Decide on a call by what came before it; None if that does not matter."""
        for ready in self._rules:
            if ready.about(server, labels) and ready.begun(state):
                return Decision(
                    action=ready.rule.action,
                    rule=ready.title,
                    reason=ready.rule.reason,
                    labels=labels,
                    led=state.led(ready.after, ready.after_servers),
                )
        return None
