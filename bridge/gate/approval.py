"""Asks a person whether a call may be made. `bridge.gate.question` has the wording.

An answer applies to the tool as it is defined now, and to the rules that ask. Errors quote neither
arguments nor answers: the person sees personal data, of which the program has only tokens.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import anyio.to_thread

from bridge.errors import ApprovalNeededError, ApprovalRefusedError, CannotAskError, SettingsError
from bridge.event_loop import offload
from bridge.gate.pins import tool_digests
from bridge.gate.policy import CHANGED, CallFacts, Decision, Mask, no_mask
from bridge.gate.question import (
    TITLES,
    Holds,
    because,
    call_name,
    led_by,
    list_offered,
    one_line,
    plan_question,
    question,
    read_answer,
    safe_name,
    was_asked,
)
from bridge.model import HeldCall, Json, Plan
from bridge.settings.policy import FlowRule, PolicySpec, Rule
from bridge.settings.policy_edit import NewRule, add_rule, rule_for

logger = logging.getLogger(__name__)

Ask = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Sends MCP's `elicitation/create` parameters and returns its `ElicitResult`, or raises
`CannotAskError`."""

_IN_TERMINAL = (
    "run the program with `mcp-code-bridge run --plan FILE` in a terminal, which asks them"
)
DO_NOT_EVADE = "Ask the user how to proceed; don't work around this."

FLOW = "flow rule "  # Prefix of the names of flow rules, which no rule on a tool overrides.


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A person's approval. `note` is for the record, such as why it is valid for a shorter time."""

    holds: Holds = "call"
    earlier: bool = False
    note: str = ""
    waited_ms: int = 0

    @property
    def fields(self) -> dict[str, Json]:
        """The approval in the audit log, without empty fields."""
        fields: dict[str, Json] = {"holds": self.holds, "earlier": self.earlier}
        fields |= {"note": self.note} if self.note else {}
        return fields | ({"waitedMs": self.waited_ms} if self.waited_ms else {})


@dataclass(frozen=True)
class Subject:
    """The scope of an answer."""

    server: str
    tool: str
    digest: str
    rule: str
    server_definition: str = ""


class Grants:
    """Answers that outlive a run, by owner."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: OrderedDict[tuple[str, Subject], float] = OrderedDict()
        self._policy = PolicySpec()

    def keep_to(self, policy: PolicySpec) -> None:
        """Remove the answers to rules that changed."""
        if policy is self._policy:
            return
        before, now = _by_title(self._policy), _by_title(policy)
        self._policy = policy
        for owner, subject in list(self._until):
            if before.get(subject.rule) != now.get(subject.rule):
                del self._until[owner, subject]

    def add(self, owner: str, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            self._until[owner, subject] = self._now() + 12 * 3600
            self._until.move_to_end((owner, subject))
        # Callers over HTTP fill this. The oldest answers go.
        while len(self._until) > 2000:
            self._until.popitem(last=False)

    def holds(self, owner: str, subject: Subject) -> bool:
        return self._now() < self._until.get((owner, subject), float("-inf"))


@dataclass(eq=False)
class Approver:
    """Asks a person about the calls of one run, one question at a time.

    Raises `ApprovalNeededError`, which says how to allow the call, if no person can be asked.
    Raises `ApprovalRefusedError` if the person refused or did not answer.
    """

    ask: Ask | None = None
    _: KW_ONLY
    grants: Grants = field(default_factory=Grants)
    owner: str = ""  # Of answers for the session; without a name they apply to one run.
    mask: Mask = no_mask
    policy: PolicySpec | None = None  # Its file gets an "always"; None if it must not change.
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _run: dict[Subject, Holds] = field(default_factory=dict, init=False)
    _refused: set[Subject] = field(default_factory=set, init=False)

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        """Return a person's approval for all decisions that ask, after one question at most."""
        if self._find_missing(call, asks):
            async with self._turn:
                # An answer to an earlier question may cover this call.
                if missing := self._find_missing(call, asks):
                    return await self._decide(call, missing)
        holds: list[Holds] = [self._run.get(_subject(call, ask), "session") for ask in asks]
        return Approval(holds=min(holds, key=list(TITLES).index), earlier=True)

    async def approve_plan(self, plan: Plan, shown: str, whole: Sequence[int]) -> Approval:
        try:
            answer = await self._elicit(plan_question(plan, shown, whole))
        except CannotAskError as error:
            asking = [held for held in plan.calls if held.action != "allow"]
            if not asking and not error.automatic:
                return Approval(earlier=True, note="the policy allows every call of the plan")
            raise _plan_needed(asking, error) from None
        decision = read_answer(answer, ("apply",), "apply")
        if decision == "apply":
            return Approval(note=_note(answer))
        remedy = "Nothing was changed. Ask the user how to proceed."
        raise ApprovalRefusedError(was_asked("to apply the plan", decision), remedy=remedy)

    def _find_missing(
        self, call: CallFacts, asks: Sequence[Decision]
    ) -> list[tuple[Decision, Subject]]:
        missing = [
            (ask, subject)
            for ask in asks
            if (subject := _subject(call, ask)) not in self._run
            and not (self.owner and self.grants.holds(self.owner, subject))
        ]
        for ask, subject in missing:
            if subject in self._refused:
                raise ApprovalRefusedError(
                    f"{call_name(call)} was not called: an earlier call of it was not allowed in "
                    f"this run ({one_line(ask.rule, 200)}), and is not asked again.",
                    remedy=DO_NOT_EVADE,
                )
        return missing

    async def _decide(
        self, call: CallFacts, missing: Sequence[tuple[Decision, Subject]]
    ) -> Approval:
        open_asks = [ask for ask, _ in missing]
        choices = self._choices(call, open_asks)
        arguments = dict(call.arguments)
        shown = await offload(arguments, partial(self.mask, arguments, call.schema))
        asked = await offload(arguments, partial(question, call, open_asks, choices, shown))
        choices = [each for each in choices if each in list_offered(asked)]
        try:
            answer = await self._elicit(asked)
        except CannotAskError as error:
            reasons = "; ".join(because(ask) for ask in open_asks)
            message = (
                f"{call_name(call)} needs a person's approval ({reasons}).{led_by(open_asks)} "
                f"{error.why} It was not called."
            )
            remedy = _remedy(call, [ask.rule for ask in open_asks])
            raise _approval_needed(error, message, remedy) from None
        decision = read_answer(answer, choices, "call")
        if holds := next((choice for choice in choices if choice == decision), None):
            held = await self._hold(call, missing, holds)
            return replace(held, note=held.note or _note(answer))
        # Otherwise each further call would ask again.
        self._refused.update(subject for _, subject in missing)
        rules = ", ".join(one_line(ask.rule, 200) for ask in open_asks)
        what = f"{call_name(call)} may be called ({rules})"
        raise ApprovalRefusedError(
            f"{was_asked(what, decision)}{led_by(open_asks)}",
            remedy="It was not called. Further calls of it are refused in this run without asking. "
            f"{DO_NOT_EVADE}",
        )

    async def _elicit(self, asked: Mapping[str, Json]) -> Mapping[str, Json]:
        if self.ask is None:
            raise CannotAskError("There is no client that could show a question.")
        return await self.ask(asked)

    def _choices(self, call: CallFacts, asks: Sequence[Decision]) -> list[Holds]:
        choices: list[Holds] = ["call", "run"]
        if self.owner:
            choices.append("session")
        writable = self.policy is not None and self.policy.path is not None
        by_flow = any(ask.rule.startswith(FLOW) for ask in asks)
        if writable and call.definition is not None and not by_flow:
            choices.append("always")
        return choices

    async def _hold(
        self, call: CallFacts, missing: Sequence[tuple[Decision, Subject]], holds: Holds
    ) -> Approval:
        note = ""
        rules = [ask.rule for ask, _ in missing if ask.rule != CHANGED]
        if holds == "always" and rules and self.policy:
            note = await _write_rule(self.policy, call, rules[0])
            if note:
                holds = "session" if self.owner else "run"
        subjects = [subject for _, subject in missing]
        if holds == "session":
            self.grants.add(self.owner, subjects)
        elif holds != "call":
            # A new rule applies from the next run on.
            self._run.update(dict.fromkeys(subjects, holds))
        return Approval(holds=holds, note=note)


async def _write_rule(policy: PolicySpec, call: CallFacts, asking: str) -> str:
    """Write a rule that allows a call, and return the reason of a failure."""
    assert policy.path is not None
    assert call.definition is not None
    today = datetime.now(UTC).astimezone().date().isoformat()
    new = NewRule(
        name=f"{call_name(call)[:60]} allowed {today}",
        server=call.server,
        tool=call.tool,
        digest=tool_digests(call.definition).schema,
        comment=f"{today}: allowed by a person when asked ({one_line(asking, 200)}).",
    )
    before = _by_title(policy).get(asking)  # None if a default asks.
    try:
        if asking.startswith("rule ") and not isinstance(before, Rule):
            raise SettingsError(f"The policy has no {asking}.")
        before = before if isinstance(before, Rule) else None
        await anyio.to_thread.run_sync(partial(add_rule, policy.path, new, before=before))
    except SettingsError as error:
        logger.warning("an approval holds for the session only: %s", error)
        return error.message
    logger.info("a rule that allows %s was written into the policy", call)
    return ""


def _note(answer: Mapping[str, Json]) -> str:
    answerer = answer.get("automatic")
    return f"automatic: {answerer} accepted it" if answerer else ""


def _by_title(policy: PolicySpec) -> dict[str, Rule | FlowRule]:
    rules: dict[str, Rule | FlowRule] = {f"rule '{rule.name}'": rule for rule in policy.rules}
    return rules | {f"{FLOW}'{rule.name}'": rule for rule in policy.flows}


def _subject(call: CallFacts, ask: Decision) -> Subject:
    digest = "" if call.definition is None else tool_digests(call.definition).schema
    return Subject(call.server, call.tool, digest, ask.rule, call.server_definition)


def _plan_needed(asking: Sequence[HeldCall], fault: CannotAskError) -> ApprovalNeededError:
    """Return the error on a plan. If the client declined an allowed plan, no call asks."""
    kinds = list(dict.fromkeys((held.server, held.tool, held.rule) for held in asking))
    shown = [(CallFacts(server=one, tool=two), rule) for one, two, rule in kinds[:5]]
    parts = [f"{call_name(call)} ({one_line(rule, 200)})" for call, rule in shown]
    if len(kinds) > 5:
        parts.append(f"{len(kinds) - 5:,} more")
    message = (
        f"The plan needs a person's approval{', for ' * bool(parts)}{', '.join(parts)}. "
        f"{fault.why} Nothing of it was done."
    )
    ways = _IN_TERMINAL
    # No rule can allow a changed definition.
    if shown and all(rule != CHANGED for _, rule in shown):
        ways = f"{' and '.join(_way(call, rule) for call, rule in shown)}. Or they {_IN_TERMINAL}"
    return _approval_needed(fault, message, f"Only the user can allow it: they {ways}.")


def _approval_needed(fault: CannotAskError, message: str, remedy: str) -> ApprovalNeededError:
    code = "answered_automatically" if fault.automatic else ""
    return ApprovalNeededError(message, code=code, remedy=remedy)


def _remedy(call: CallFacts, rules: Sequence[str]) -> str:
    terminal = "make such a call with `mcp-code-bridge run` in a terminal, which asks them"
    if CHANGED in rules:
        # No rule can allow a changed definition.
        return (
            f'Only the user can allow it: they {terminal}, and answer "always" if the change is '
            "all right."
        )
    ways = " and ".join(_way(call, rule) for rule in dict.fromkeys(rules))
    return f"Only the user can allow it: they {ways}. Or they {terminal}."


def _way(call: CallFacts, asking: str) -> str:
    if asking.startswith(FLOW):
        return f"change the {one_line(asking, 200)} in the policy (config.toml)"
    if any(safe_name(name) != name for name in (call.server, call.tool)):
        return "write a rule into the policy (config.toml)"
    where = " in front of the rule that asks" if asking.startswith("rule ") else ""
    rule = "\n".join(rule_for(f"allow {call}", call.server, call.tool, "allow"))
    return (
        f"put this into the policy (config.toml){where}:\n\n{rule}\n\n"
        f"(`mcp-code-bridge policy explain {call.server} {call.tool}` tells more)"
    )
