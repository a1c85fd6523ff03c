"""The calls that a run in plan mode holds back, and plans, each applied once by whoever made it.

Owns what is kept of a held call (what it is to be made with, what was decided on it and by which
rules, its tool's definition, what had been read by then), what an approval of a plan covers, and
the plans' ids, bounds and expiry. Plans are kept in memory only: what outlives the bridge is the
audit trail of what was done with them. Makes no call.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bridge.errors import (
    ApprovalNeededError,
    CallBudgetError,
    InvalidRequestError,
    UnknownPlanError,
)
from bridge.gate.approval import Approval, Approver
from bridge.gate.canonical import arguments_digest
from bridge.gate.decision import CallFacts, Decision, Mask, unmasked
from bridge.gate.flow import FlowState
from bridge.gate.pins import tool_digest
from bridge.gate.plans.arguments import (
    labelled,
    mentions,
    readable,
    referred,
    shown,
)
from bridge.model import Effect, HeldCall, Json, Plan

MAX_CALLS = 1_000
"""In one plan: as many as somebody may still approve of in a list."""

MAX_CHARACTERS = 8 * 1024 * 1024
"""Of all their arguments, as JSON."""


MAX_NAME = 256
"""Characters of a tool's name, which lists and errors repeat; the protocol recommends half."""


MAX_STALE = 5
"""Tools named of those that read what held calls will change."""


PLAN_SECONDS = 30 * 60.0
"""For which a plan can be applied: longer than it takes to read one, and not so long that what its
reads found is no longer so."""

MAX_PLANS = 50
MAX_OWN_CHARACTERS = 32 * 1024 * 1024
"""Of one owner: plans, and characters of their arguments. The oldest make room."""

MAX_ALL_PLANS = 500
MAX_ALL_CHARACTERS = 128 * 1024 * 1024
"""Of all owners."""

MAX_REMEMBERED = 1_000
"""Plans that are gone of which it is still known what became of them."""


class Held(dict[str, Json]):
    """What a program gets for a call that is held back: the wire shape of a placeholder."""


@dataclass(frozen=True, kw_only=True)
class HeldRequest:
    """One held call.

    Attributes:
        call: With placeholders, and tokens in place of personal data, in its arguments.
        decision: The strictest.
        effect: What the policy takes it to do.
        asked: The rules that want a person's approval of it.
        digest: Of its tool's definition; empty if its server lists no such tool.
        uses: Numbers of the calls whose results it is made with.
        flow: What had been called, and held, before it.
    """

    number: int
    call: CallFacts
    decision: Decision
    effect: Effect
    asked: frozenset[str]
    digest: str
    uses: frozenset[int]
    flow: FlowState

    def __str__(self) -> str:
        return f"#{self.number} {self.call}"


class Covered(Approver):
    """Approves of one held call as far as the plan's approval does; asks nobody."""

    def __init__(self, approval: Approval, request: HeldRequest) -> None:
        super().__init__()
        self._approval = approval
        self._request = request

    async def approve(self, call: CallFacts, asks: Sequence[Decision]) -> Approval:
        """Return the plan's approval, which covers what was shown and nothing more.

        Raises:
            ApprovalNeededError: The plan did not show that this call needs it for such a reason.
        """
        news = [ask for ask in asks if ask.rule not in self._request.asked]
        if not news:
            return self._approval
        reasons = "; ".join(f"{ask.rule}: {ask.reason}" if ask.reason else ask.rule for ask in news)
        message = (
            f"{call} needs a person's approval for a reason that the plan did not show ({reasons})."
        )
        raise ApprovalNeededError(
            message,
            remedy="Make this call, and what follows, in a run of its own, where it is asked "
            "about; or plan again.",
        )


class Holding:
    """The calls that one run in plan mode holds back.

    Attributes:
        plan: What its placeholders are known by, which nobody can guess.
        spoiled: Why nothing of it may be applied; empty as long as it may.
        requests: The calls, in their order.
        characters: How long their arguments are.

    Args:
        mask: Takes out of arguments what nobody needs to see.
    """

    def __init__(self, mask: Mask = unmasked) -> None:
        self.plan = secrets.token_hex(8)
        self.spoiled = ""
        self._mask = mask
        self.requests: list[HeldRequest] = []
        self.characters = 0
        self._shown: tuple[HeldCall, ...] = ()
        self._changing: set[str] = set()
        self._stale: Counter[str] = Counter()

    @property
    def stale(self) -> str:
        """What was read from servers that by then had something held back, in words."""
        named = list(self._stale.items())
        told = [f"{count:,} × {name}" for name, count in named[:MAX_STALE]]
        if len(named) > MAX_STALE:
            told.append(f"{sum(count for _, count in named[MAX_STALE:]):,} of other tools")
        return ", ".join(told)

    @property
    def count(self) -> int:
        """How many it holds."""
        return len(self.requests)

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        """Tell whether arguments hold a placeholder, of this run or not, or what was one."""
        return mentions(dict(arguments), self.plan)

    def labelled(self, value: Json) -> Json:
        """Return what the program wrote with the results of held calls by name."""
        return labelled(value, self.plan, self._names())

    def hold(
        self,
        call: CallFacts,
        decision: Decision,
        asks: Sequence[Decision] = (),
        flow: FlowState | None = None,
    ) -> Held:
        """Hold a call back and return `{"held": {"plan": ..., "number": ..., "call": ...}}`.

        Args:
            asks: Every decision on it, the policy's own first; `decision` is the strictest.
            flow: What came before it; copied.

        Raises:
            CallBudgetError: The plan holds all that it may.
            InvalidRequestError: The tool's name or the arguments are no tool's.
            HeldResultError: An argument holds a placeholder that the program has changed.
        """
        if self.count >= MAX_CALLS:
            message = f"A plan holds {MAX_CALLS:,} calls at most, and this one does."
            raise CallBudgetError(message, remedy="Make a plan for each part of the work.")
        if len(call.tool) > MAX_NAME:
            message = f"A tool's name may have {MAX_NAME} characters, not {len(call.tool):,}."
            raise InvalidRequestError(message)
        uses = referred([call.tool, dict(call.arguments)], self.plan, self.count)
        size = len(json.dumps(call.arguments, ensure_ascii=False))
        if self.characters + size > MAX_CHARACTERS:
            message = f"The arguments in one plan may be {MAX_CHARACTERS:,} characters of JSON."
            raise CallBudgetError(message, remedy="Make a plan for each part of the work.")
        self.characters += size
        self._changing.add(call.server)
        number = self.count + 1
        rules = {ask.rule for ask in (decision, *asks) if ask.action == "ask"}
        before = FlowState()
        if flow is not None:
            before.absorb(flow)
        self.requests.append(
            HeldRequest(
                number=number,
                call=call,
                decision=decision,
                effect=asks[0].effect if asks else decision.effect,
                asked=frozenset(rules),
                digest="" if call.definition is None else tool_digest(call.definition),
                uses=uses,
                flow=before,
            )
        )
        return Held(held={"plan": self.plan, "number": number, "call": str(call)})

    def reading(self, call: CallFacts) -> None:
        """Note a call that reads: held calls to its server might have changed what it finds."""
        if call.server in self._changing:
            self._stale[str(call)[:MAX_NAME]] += 1

    def spoil(self, why: str) -> None:
        """Have nothing of it applied: it holds a call that the program was told is refused."""
        self.spoiled = self.spoiled or why

    def shown(self) -> tuple[HeldCall, ...]:
        """Return the calls as they are shown; to find that out is worth a thread."""
        if len(self._shown) == self.count:
            return self._shown
        names = self._names()
        self._shown = tuple(self._held_call(request, names) for request in self.requests)
        return self._shown

    def _names(self) -> Mapping[int, str]:
        return {request.number: str(request.call) for request in self.requests}

    def _held_call(self, request: HeldRequest, names: Mapping[int, str]) -> HeldCall:
        call = request.call
        arguments, cut = shown(call, names, self._mask)
        return HeldCall(
            number=request.number,
            server=call.server,
            tool=call.tool,
            arguments=arguments,
            effect=request.effect,
            action=request.decision.action,
            rule=" and ".join(sorted(request.asked)) or request.decision.rule,
            unlisted=call.unlisted(arguments),
            cut=cut,
            digest=arguments_digest(readable(call.arguments, names)).removeprefix("sha256:"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptPlan:
    """A plan, with what applying it takes.

    Attributes:
        plan: As it is shown.
        run_id: The run that made it.
        requests: Its calls.
        characters: How long their arguments are.
        until: When it expires, on the clock of `Plans`.
    """

    plan: Plan
    owner: str
    run_id: str
    requests: tuple[HeldRequest, ...]
    characters: int
    until: float

    @property
    def plan_id(self) -> str:
        """What it is applied by."""
        return self.plan.plan_id


class Plans:
    """Plans that can be applied, each once, by whoever made it.

    Args:
        now: Seconds, for expiry.
        seconds: For how long one can be applied.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, *, seconds: float = PLAN_SECONDS
    ) -> None:
        self._now = now
        self._seconds = seconds
        self._kept: OrderedDict[str, KeptPlan] = OrderedDict()
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Plans kept={len(self._kept)} remembered={len(self._gone)}>"

    def keep(
        self, holding: Holding, owner: str, *, run_id: str, stopped: str = "", failed: bool = False
    ) -> Plan:
        """Keep what a run held back; a plan without an id is shown, and cannot be applied.

        Args:
            stopped: Why the program did not get to its end, if it stopped where a plan does.
            failed: It failed, so that what it held is no plan of anything.
        """
        calls, stale = holding.shown(), holding.stale
        stopped = holding.spoiled or stopped
        if failed or holding.spoiled or not calls:
            return Plan(plan_id="", seconds=0, calls=calls, stopped=stopped, stale=stale)
        plan_id = secrets.token_hex(16)
        plan = Plan(
            plan_id=plan_id, seconds=self._seconds, calls=calls, stopped=stopped, stale=stale
        )
        self._drop_expired()
        self._kept[plan_id] = KeptPlan(
            plan=plan,
            owner=owner,
            run_id=run_id,
            requests=tuple(holding.requests),
            characters=holding.characters,
            until=self._now() + self._seconds,
        )
        self._make_room(owner)
        return plan

    def take(self, plan_id: str, owner: str, *, run_id: str) -> KeptPlan:
        """Take a plan to apply it, which nobody can after that.

        Args:
            run_id: The run that applies it.

        Raises:
            UnknownPlanError: It was used, has expired, or is none of this owner's.
        """
        self._drop_expired()
        kept = self._kept.get(plan_id)
        if kept is None or kept.owner != owner:
            # The same words for another's as for none: whose it is is nobody else's business.
            if self.remembers(plan_id, owner):
                message = f"The plan {plan_id} cannot be applied: {self._gone[plan_id][1]}."
                raise UnknownPlanError(message)
            message = f"There is no plan {plan_id!r:.80} for this caller."
            raise UnknownPlanError(message, remedy=_UNKNOWN_REMEDY)
        del self._kept[plan_id]
        self.close(kept, f"the run {run_id} took it at {_moment()}, and a plan is used once")
        return kept

    def knows(self, plan_id: str, owner: str) -> bool:
        """Tell whether this is, or was, the id of one of the owner's plans."""
        kept = self._kept.get(plan_id)
        return self.remembers(plan_id, owner) or (kept is not None and kept.owner == owner)

    def remembers(self, plan_id: str, owner: str) -> bool:
        """Tell whether it is known here what became of a plan that is gone."""
        gone = self._gone.get(plan_id)
        return gone is not None and gone[0] == owner

    def withdraw(self, plan: Plan, why: str) -> Plan:
        """Return a plan as one that cannot be applied, after it was kept."""
        self._kept.pop(plan.plan_id, None)
        return replace(plan, plan_id="", seconds=0, stopped=why)

    def give_back(self, kept: KeptPlan) -> None:
        """Have a plan as if it had never been taken; nothing was done with it."""
        self._gone.pop(kept.plan_id, None)
        self._kept[kept.plan_id] = kept
        self._make_room(kept.owner)

    def close(self, kept: KeptPlan, why: str) -> None:
        """Say for later what became of a plan that is gone."""
        self._gone[kept.plan_id] = (kept.owner, why)
        self._gone.move_to_end(kept.plan_id)
        if len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)

    def _drop_expired(self) -> None:
        now = self._now()
        for kept in [kept for kept in self._kept.values() if kept.until <= now]:
            minutes = self._seconds / 60
            self._drop(kept, f"it expired {minutes:g} minutes after it was made; plan again")

    def _make_room(self, owner: str) -> None:
        """Drop the oldest until what is left is within bounds; the newest always is."""
        own = [kept for kept in self._kept.values() if kept.owner == owner]
        self._thin(own, MAX_PLANS, MAX_OWN_CHARACTERS)
        self._thin(list(self._kept.values()), MAX_ALL_PLANS, MAX_ALL_CHARACTERS)

    def _thin(self, plans: list[KeptPlan], count: int, characters: int) -> None:
        while len(plans) > count or sum(kept.characters for kept in plans) > characters:
            self._drop(plans.pop(0), "newer plans took its place; plan again")

    def _drop(self, kept: KeptPlan, why: str) -> None:
        del self._kept[kept.plan_id]
        self.close(kept, why)


_UNKNOWN_REMEDY = (
    "Plans are kept in the memory of one bridge, for whoever made them. Run the program in plan "
    "mode again. If the bridge was started again since, ask the user first for what "
    "`mcp-code-bridge audit show PLAN` says was done of it."
)


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
