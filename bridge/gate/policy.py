"""Decides by the policy which calls are allowed, and by flow rules which may follow others. Pure.

Names are compared character by character. A call counts as read when it is sent, since an earlier
call cannot have its result. So the calls sent before a call decide on it, however long it waits for
a person.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Literal, NamedTuple

from bridge.gate.conditions import ConditionCheck, Work, is_short_text, texts_wanted
from bridge.gate.pins import tool_digests
from bridge.model import Action, Effect, Json, Provenance, Tool
from bridge.settings.policy import (
    EXFILTRATION,
    STRICTNESS,
    UNTRUSTED_INPUT,
    DefaultFor,
    FlowRule,
    Matcher,
    PolicySpec,
    Rule,
    ServerPolicy,
    ToolPolicy,
    matcher,
)

Mask = Callable[[Json, Json], Json]
"""Takes arguments and their schema, and returns the arguments without secrets."""

UNLISTED = "unlisted tool"  # The rule that denies tools that their server does not list.

CHANGED = "changed tool"
"""The rule that asks about a tool that changed since it was allowed; see `gate.pins`."""

REDEFINED = "changed server"
"""The rule that asks about a server whose definition changed since it was allowed."""

Calls = dict[str, int]  # Counts of calls by tool. The empty name counts further tools.

OPEN = "no policy"

DEFAULTS: Mapping[DefaultFor, str] = {
    "read": "default for reads",
    "write": "default for writes",
    "destructive": "default for destructive calls",
    "untrusted": "default for untrusted tools",
}
"""Names of the defaults in decisions."""

LONG_NAME = "limit of a name's length"

MAX_NAME_CHARS = 512
"""Characters of a tool's name: programs may send any, and each rule is matched against it."""

NOTHING: frozenset[str] = frozenset()

# The reason for a tool's effect.
BY_POLICY = "the policy says so"
BY_SERVER = "the server's annotations say so, and it is trusted"
BY_HINT = "a server of yours says so, which counts in plans and in the audit log"
BY_PROTOCOL = "the protocol says so"
UNKNOWN = "unknown: neither your policy nor a trusted server classifies it"


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """A call to decide on, with the arguments that the server would get."""

    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    definition: Tool | None = None
    server_definition: str = ""  # The digest of its server's definition.
    own: bool = False  # Whether the user's file, and not a project's, defines the server.

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"

    @property
    def schema(self) -> Mapping[str, Json]:
        return {} if self.definition is None else self.definition.input_schema

    @property
    def says_it_reads(self) -> bool:
        return self.own and self.definition is not None and self.definition.says_it_reads

    def find_unlisted(self, names: Iterable[str]) -> tuple[str, ...]:
        known = self.schema.get("properties")
        if not isinstance(known, Mapping):
            return ()
        return tuple(name for name in names if name not in known)


def no_mask(value: Json, schema: Json = None) -> Json:
    return value


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a call is allowed, asked about or denied, and why."""

    action: Action
    rule: str  # Shown and recorded: "rule 'no force'".
    reason: str = ""
    effect: Effect = "write"
    labels: frozenset[str] = frozenset()
    led: tuple[str, ...] = ()  # The earlier calls that made a flow rule decide.


def strictest(first: Decision, *others: Decision | None) -> Decision:
    """Return the strictest decision, with the effect and labels of the first."""
    decisions = (first, *filter(None, others))
    found = max(decisions, key=lambda each: STRICTNESS.index(each.action))
    if found is first:
        return first
    return replace(found, effect=first.effect, labels=first.labels)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of an explained decision."""

    about: Literal["effect", "label", "rule", "default"]
    name: str
    applies: bool = True  # Whether the step matched; for a default, whether it decided.
    action: Action | None = None
    why: str = ""
    place: str = ""  # The position of a rule in the file.


class _CompiledRule:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.title = f"rule '{rule.name}'"
        self.servers = matcher(*rule.servers)
        self.tools = matcher(*rule.tools)
        self.effects = rule.effects
        self.digest = rule.digest
        self.allows = rule.action == "allow"
        self.checks = tuple(ConditionCheck(condition, every=self.allows) for condition in rule.when)
        # A top-level argument that must equal one of these texts is quick to check.
        self.key, self.texts = next(filter(None, map(texts_wanted, rule.when)), ("", NOTHING))


class _ToolRules:
    """The rules of a policy on one tool."""

    def __init__(
        self,
        rules: Iterable[_CompiledRule],
        server: ServerPolicy | None,
        tool: ToolPolicy | None,
        definition: Tool | None,
    ) -> None:
        # In order. Rules that need a text in an argument are indexed by that text.
        self._rules: list[tuple[int, _CompiledRule]] = []
        self._by_text: dict[str, dict[str, list[tuple[int, _CompiledRule]]]] = {}
        self._with_text: dict[str, list[tuple[int, _CompiledRule]]] = {}
        for placed in enumerate(rules):
            rule = placed[1]
            if not rule.texts:
                self._rules.append(placed)
                continue
            self._with_text.setdefault(rule.key, []).append(placed)
            by_text = self._by_text.setdefault(rule.key, {})
            for text in rule.texts:
                by_text.setdefault(text, []).append(placed)
        self.server = server
        self.tool = tool
        self.definition = definition
        self._digest: str | None = None
        trusted = server is not None and server.trust
        self._hints = definition.annotations if trusted and definition is not None else None
        self.effect, self.origin = self._find_effect()
        self.labels = NOTHING.union(*(labels for labels, _ in self.sources()))

    def rules(self, arguments: Mapping[str, Json]) -> Iterator[_CompiledRule]:
        """Yield the rules in order, without those that need another text in an argument."""
        found = list(self._rules)
        for key, every in self._with_text.items():
            value = arguments.get(key)
            found += self._by_text[key].get(str(value), ()) if is_short_text(value) else every
        for _, rule in sorted(found, key=itemgetter(0)):
            yield rule

    def _find_effect(self) -> tuple[Effect, str]:
        if self.tool is not None and self.tool.effect is not None:
            return self.tool.effect, BY_POLICY
        if self._hints is None:
            return "write", UNKNOWN
        # The protocol assumes the worst without hints.
        if self._hints.get("readOnlyHint") is True:
            return "read", BY_SERVER
        destroys = self._hints.get("destructiveHint") is not False
        return ("destructive" if destroys else "write"), BY_SERVER

    def sources(self) -> list[tuple[frozenset[str], str]]:
        found = []
        if self.server is not None and self.server.labels:
            found.append((self.server.labels, f"the policy, of servers {self.server.servers!r}"))
        if self.tool is not None and self.tool.labels:
            found.append((self.tool.labels, f"the policy, of tools {self.tool.tools!r}"))
        if (self._hints or {}).get("openWorldHint") is True:
            label = UNTRUSTED_INPUT if self.effect == "read" else EXFILTRATION
            found.append((frozenset({label}), "the server's openWorldHint, which is believed"))
        return found

    def differs(self, ready: _CompiledRule) -> bool:
        """Return whether a rule is for another definition of the tool, and so does not apply.

        If the tool has no definition, a rule that allows does not apply.
        """
        if self.definition is None:
            return ready.allows
        if self._digest is None:
            try:
                self._digest = tool_digests(self.definition).schema
            except (RecursionError, TypeError, ValueError):
                # A definition without JSON form is never the allowed one.
                self._digest = ""
        return self._digest != ready.digest and (ready.allows or self._digest != "")


@dataclass(kw_only=True, eq=False)
class FlowState:
    """The servers and labels of all data read so far, from calls and from stored items."""

    labels: dict[str, Calls] = field(default_factory=dict)
    servers: dict[str, Calls] = field(default_factory=dict)
    unknown: Calls = field(default_factory=dict)  # Things that may have any label and server.

    def add_call(self, server: str, tool: str, labels: frozenset[str]) -> None:
        name = f"{server}.{tool}"
        _add(self.servers.setdefault(server, {}), name)
        for label in labels:
            _add(self.labels.setdefault(label, {}), name)

    def add_provenance(self, name: str, provenance: Provenance) -> bool:
        """Record that a stored item was read, and return whether its provenance is new."""
        new = not self.knows(provenance)
        calls = [self.unknown] if provenance.anything else []
        calls += [self.servers.setdefault(server, {}) for server in sorted(provenance.servers)]
        calls += [self.labels.setdefault(label, {}) for label in sorted(provenance.labels)]
        for each in calls:
            if name not in each:
                _add(each, name)
        return new

    def provenance(self, run_id: str) -> Provenance | None:
        """Return the provenance of items that a run stores now; None if it read nothing."""
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


class Policy:
    def __init__(self, spec: PolicySpec | None = None) -> None:
        self.spec = spec or PolicySpec()
        self._rules = tuple(_CompiledRule(rule) for rule in self.spec.rules)
        self._servers = [
            (
                matcher(server.servers),
                server,
                [(matcher(tool.tools), tool) for tool in server.tools],
            )
            for server in self.spec.servers
        ]
        self._known: dict[tuple[str, str, bool], _ToolRules] = {}

    def decide(self, call: CallFacts, effect: Effect | None = None) -> Decision:
        """Decide on a call by rules and defaults alone. `effect` overrides the policy's own."""
        if not self.spec.present:
            said: Effect = "read" if call.says_it_reads else "write"
            return Decision(action="allow", rule=OPEN, effect=effect or said)
        if len(call.tool) > MAX_NAME_CHARS:
            reason = f"the tool's name has more than {MAX_NAME_CHARS} characters"
            return Decision(action="deny", rule=LONG_NAME, reason=reason, effect=effect or "write")
        known = self._about(call.server, call.tool, call.definition)
        taken = effect or known.effect
        # For plans and the audit log only. Rules and defaults do not trust servers.
        hinted = effect is None and known.server is None and call.says_it_reads
        shown: Effect = "read" if hinted else taken
        ready = self._match(known, call, taken)
        if ready is not None:
            action, rule = ready.rule.action, ready.title
            reason = ready.rule.reason if ready.allows else _reason(ready, call)
        else:
            default: DefaultFor = taken if effect or known.origin != UNKNOWN else "untrusted"
            action, rule, reason = self.spec.defaults[default], DEFAULTS[default], ""
        return Decision(action=action, rule=rule, reason=reason, effect=shown, labels=known.labels)

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.spec.flows)

    def start(self, server: str) -> Decision:
        if not self.spec.present:
            return Decision(action="allow", rule=OPEN)
        policy, _ = self._server(server)
        if policy is None or policy.start is None:
            return Decision(action=self.spec.start, rule="start of servers")
        return Decision(action=policy.start, rule=f"start of servers '{policy.servers}'")

    def pins_fully(self, server: str) -> bool:
        policy, _ = self._server(server)
        return policy is not None and policy.pin == "full"

    def labels(self, server: str, tool: str, definition: Tool | None) -> frozenset[str]:
        if not self.spec.present or len(tool) > MAX_NAME_CHARS:
            return NOTHING
        return self._about(server, tool, definition).labels

    def explain(self, call: CallFacts, effect: Effect | None = None) -> tuple[Step, ...]:
        """Return the steps of a decision: effect, labels, rules, default."""
        if not self.spec.present or len(call.tool) > MAX_NAME_CHARS:
            found = self.decide(call, effect)
            why = found.reason or "there is no [policy] in the configuration"
            said = BY_PROTOCOL if effect else BY_HINT if call.says_it_reads else UNKNOWN
            return (
                Step(about="effect", name=found.effect, why=said),
                Step(about="default", name=found.rule, action=found.action, why=why),
            )
        known = self._about(call.server, call.tool, call.definition)
        taken, origin = effect or known.effect, BY_PROTOCOL if effect else known.origin
        steps = [Step(about="effect", name=taken, why=origin)]
        for labels, source in known.sources():
            steps += [Step(about="label", name=label, why=source) for label in sorted(labels)]
        # All rules share one budget, as in `decide`.
        work, decided = Work(), ""
        for ready in self._rules:
            why = f"{decided} decided" if decided else _mismatch(ready, known, call, taken, work)
            tests = (check.explain(call.arguments, call.definition) for check in ready.checks)
            steps.append(
                Step(
                    about="rule",
                    name=ready.rule.name,
                    applies=not why,
                    action=ready.rule.action,
                    why=why or "; ".join(tests) or "it has no conditions",
                    place=ready.rule.place,
                )
            )
            decided = decided or ("" if why else ready.title)
        default: DefaultFor = "untrusted" if origin == UNKNOWN else taken
        last = Step(
            about="default",
            name=DEFAULTS[default],
            applies=not decided,
            action=self.spec.defaults[default],
            why=f"{decided} decided" if decided else "no rule matched",
        )
        return (*steps, last)

    def _match(self, known: _ToolRules, call: CallFacts, effect: Effect) -> _CompiledRule | None:
        work, arguments, definition = Work(), call.arguments, call.definition
        for ready in known.rules(arguments):
            if ready.effects and effect not in ready.effects:
                continue
            if ready.digest and known.differs(ready):
                continue
            for check in ready.checks:
                if not check.holds(arguments, definition, work):
                    break
            else:
                return ready
        return None

    def _about(self, server: str, tool: str, definition: Tool | None) -> _ToolRules:
        # Flow rules need labels without a definition.
        key = server, tool, definition is None
        known = self._known.get(key)
        if known is None or known.definition is not definition:
            if len(self._known) >= 1024:
                # Only a program that invents names gets here.
                self._known.clear()
            rules = (rule for rule in self._rules if rule.servers(server) and rule.tools(tool))
            policy, tools = self._server(server)
            its_tool = next((its for matches, its in tools if matches(tool)), None)
            known = self._known[key] = _ToolRules(rules, policy, its_tool, definition)
        return known

    def _server(
        self, server: str
    ) -> tuple[ServerPolicy | None, list[tuple[Callable[[str], bool], ToolPolicy]]]:
        found = ((policy, tools) for matches, policy, tools in self._servers if matches(server))
        return next(found, (None, []))


def _reason(ready: _CompiledRule, call: CallFacts) -> str:
    """Return a rule's reason, and the argument that could not be judged."""
    doubts = (check.doubt(call.arguments, call.definition) for check in ready.checks)
    return "; ".join(filter(None, (ready.rule.reason, next(filter(None, doubts), ""))))


def _mismatch(
    ready: _CompiledRule, known: _ToolRules, call: CallFacts, effect: Effect, work: Work
) -> str:
    if not ready.servers(call.server):
        return f"it is about servers {', '.join(ready.rule.servers)}"
    if not ready.tools(call.tool):
        return f"it is about tools {', '.join(ready.rule.tools)}"
    if ready.effects and effect not in ready.effects:
        return f"it is about {' and '.join(sorted(ready.effects))} calls, and this is a {effect}"
    if ready.digest and known.differs(ready):
        return "it is about the tool as it was defined when the rule was made"
    for check in ready.checks:
        if not check.holds(call.arguments, call.definition, work):
            return check.explain(call.arguments, call.definition)
    return ""


class Possibility(NamedTuple):
    """A decision that unseen arguments could cause, and the names of those arguments."""

    decision: Decision
    on: tuple[str, ...]


class Outlook(NamedTuple):
    """The forecast for a call: the decision without unseen arguments, and the possibilities."""

    decision: Decision
    possible: tuple[Possibility, ...] = ()


_SUPPOSED = "(supposed to match)"


def outlook(
    policy: Policy,
    call: CallFacts,
    *,
    unseen: Collection[str] = (),  # Names of arguments whose values are not known.
    open: bool = False,  # Whether the call may have arguments of other names.
    effect: Effect | None = None,
) -> Outlook:
    """Forecast the policy's decision on a call that a program makes when it runs."""
    possible: list[Possibility] = []
    certain: list[Rule] = []
    for rule in policy.spec.rules:
        doubts = [
            condition
            for condition in rule.when
            if open or (unseen if condition.path[0] == "*" else condition.path[0] in unseen)
        ]
        if not doubts:
            certain.append(rule)
            continue
        # Assume that unseen arguments match this rule, and no rule before it.
        kept = tuple(condition for condition in rule.when if condition not in doubts)
        supposed = replace(rule, name=_SUPPOSED, when=kept)
        found = Policy(replace(policy.spec, rules=(*certain, supposed))).decide(call, effect)
        if _SUPPOSED in found.rule:
            on = dict.fromkeys(".".join(condition.path) for condition in doubts)
            possible.append(Possibility(replace(found, rule=f"rule '{rule.name}'"), tuple(on)))
    base = Policy(replace(policy.spec, rules=tuple(certain))).decide(call, effect)
    return Outlook(base, tuple(possible))
