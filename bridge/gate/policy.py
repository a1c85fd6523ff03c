"""Decides by the policy which calls are allowed, and reads the policy file again when it changes.

Names are compared character by character. While the file cannot be read, nothing runs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple

from bridge.errors import SettingsError
from bridge.gate.conditions import ConditionCheck, Work, is_short_text, texts_wanted
from bridge.gate.decision import CallFacts, Decision, digest
from bridge.gate.flow import Flow, FlowState
from bridge.gate.pins import tool_digest
from bridge.model import Action, Effect, Json, Tool
from bridge.settings import Settings, reload_policy
from bridge.settings.policy import (
    EXFILTRATION,
    UNTRUSTED_INPUT,
    DefaultFor,
    PolicySpec,
    Rule,
    ServerPolicy,
    ToolPolicy,
    matcher,
)
from bridge.text import without_values

logger = logging.getLogger(__name__)

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

_Tools = list[tuple[Callable[[str], bool], ToolPolicy]]

# The reason for a tool's effect.
BY_POLICY = "the policy says so"
BY_SERVER = "the server's annotations say so, and it is trusted"
BY_HINT = "a server of yours says so, which counts in plans and in the audit log"
BY_PROTOCOL = "the protocol says so"
UNKNOWN = "unknown: neither your policy nor a trusted server classifies it"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of an explained decision. `place` is the position of a rule in the file.

    `applies` means that the step matched; for a default, that it decided.
    """

    about: Literal["effect", "label", "rule", "default"]
    name: str
    applies: bool = True
    action: Action | None = None
    why: str = ""
    place: str = ""


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
        self.effect, self.origin = _effect(server, tool, definition)
        self.labels = NOTHING.union(*(labels for labels, _ in self.sources()))

    def rules(self, arguments: Mapping[str, Json]) -> Iterator[_CompiledRule]:
        """Yield the rules in order, without those that need another text in an argument."""
        found = list(self._rules)
        for key, every in self._with_text.items():
            value = arguments.get(key)
            found += self._by_text[key].get(str(value), ()) if is_short_text(value) else every
        for _, rule in sorted(found, key=itemgetter(0)):
            yield rule

    def sources(self) -> list[tuple[frozenset[str], str]]:
        found = []
        if self.server is not None and self.server.labels:
            found.append((self.server.labels, f"the policy, of servers {self.server.servers!r}"))
        if self.tool is not None and self.tool.labels:
            found.append((self.tool.labels, f"the policy, of tools {self.tool.tools!r}"))
        if (_trusted_annotations(self.server, self.definition) or {}).get("openWorldHint") is True:
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
                self._digest = tool_digest(self.definition)
            except (RecursionError, TypeError, ValueError):
                # A definition without JSON form is never the allowed one.
                self._digest = ""
        return self._digest != ready.digest and (ready.allows or self._digest != "")


def _trusted_annotations(
    server: ServerPolicy | None, definition: Tool | None
) -> Mapping[str, Json] | None:
    trusted = server is not None and server.trust
    return definition.annotations if trusted and definition is not None else None


def _effect(
    server: ServerPolicy | None, tool: ToolPolicy | None, definition: Tool | None
) -> tuple[Effect, str]:
    if tool is not None and tool.effect is not None:
        return tool.effect, BY_POLICY
    hints = _trusted_annotations(server, definition)
    if hints is None:
        return "write", UNKNOWN
    # The protocol assumes the worst without hints.
    if hints.get("readOnlyHint") is True:
        return "read", BY_SERVER
    return ("write" if hints.get("destructiveHint") is False else "destructive"), BY_SERVER


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
            rule = ready.rule
            return Decision(
                action=rule.action,
                rule=ready.title,
                reason=rule.reason if ready.allows else _reason(ready, call),
                effect=shown,
                labels=known.labels,
            )
        default: DefaultFor = taken if effect or known.origin != UNKNOWN else "untrusted"
        return Decision(
            action=self.spec.defaults[default],
            rule=DEFAULTS[default],
            effect=shown,
            labels=known.labels,
        )

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

    def _server(self, server: str) -> tuple[ServerPolicy | None, _Tools]:
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
    unseen: Collection[str] = (),
    open: bool = False,
    effect: Effect | None = None,
) -> Outlook:
    """Forecast the policy's decision on a call that a program makes when it runs.

    Args:
        unseen: Names of arguments whose values are not known.
        open: Whether the call may have arguments of other names.
    """
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


def flow_decision(
    flow: Flow,
    call: CallFacts,
    labels: frozenset[str],
    before: Sequence[tuple[CallFacts, frozenset[str]]],
) -> Decision | None:
    """Return the decision of the flow rules on a call after all these other calls."""
    state = FlowState()
    for earlier, its in before:
        state.add_call(earlier.server, earlier.tool, its)
    return flow.decide(state, call.server, labels)


class PolicyFile:
    """The policy of a file, which is read again when the file changes.

    `changed` receives the audit record of a change. `digest` is that of the active policy.
    """

    def __init__(self, settings: Settings, changed: Callable[[Mapping[str, Json]], None]) -> None:
        self._settings = settings
        self._changed = changed
        # Read at the first run, since the file may have changed.
        self._state: tuple[int, ...] | None = None
        self._policy = Policy(settings.policy)
        self._flow = Flow(settings.policy.flows)
        self._error: SettingsError | None = None
        self.digest = policy_digest(settings.policy)

    def now(self) -> tuple[Policy, Flow]:
        """Return the policy and its flow rules. Raise `SettingsError` while the file is invalid."""
        state = _state(self._settings.policy.path)
        if state != self._state:
            self._state = state
            try:
                self._reload(state)
                self._error = None
            except SettingsError as error:
                logger.warning("the policy cannot be read: %s", error)
                # Models read this error, so it has no host paths.
                message, remedy = without_values(error.message), without_values(error.remedy)
                self._error = SettingsError(message, remedy=remedy)
        if self._error is not None:
            raise self._error
        return self._policy, self._flow

    def _reload(self, state: tuple[int, ...] | None) -> None:
        """Activate the file's policy and report a change."""
        # Some editors empty or remove the file while they save.
        if self._policy.spec.present and not (state and state[1] > 0):
            message = f"{self._settings.policy.path} held a policy, and now is empty or gone."
            remedy = "Restore it. To continue without a policy, remove [policy] or restart."
            raise SettingsError(message, remedy=remedy)
        spec = reload_policy(self._settings)
        if spec == self._policy.spec:
            return
        logger.info("the policy was read again")
        self._policy, self._flow = Policy(spec), Flow(spec.flows)
        was, self.digest = self.digest, policy_digest(spec)
        self._changed({"kind": "policy", "policy": self.digest, "was": was})


def policy_digest(spec: PolicySpec) -> str:
    if not spec.present:
        return ""
    # Positions do not change the meaning.
    rules = tuple(replace(rule, place="") for rule in spec.rules)
    meant = asdict(replace(spec, path=None, rules=rules))
    return digest(json.dumps(meant, default=sorted, sort_keys=True).encode("ascii"))


def _state(path: Path | None) -> tuple[int, ...] | None:
    """Return a value that changes with the file; empty if unreadable, None without a file."""
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times as fast as Path.stat
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
