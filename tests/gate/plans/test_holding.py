"""What a run holds back, and how long that can be applied, how often and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import (
    ApprovalNeededError,
    CallBudgetError,
    HeldResultError,
    InvalidRequestError,
    UnknownPlanError,
)
from bridge.gate.approval import Approval
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import FlowState
from bridge.gate.plans import Covered, Holding, Plans, holding
from bridge.guest.protocol.placeholders import WHOLE, write
from bridge.model import Plan, Tool

ALLOW = Decision(action="allow", rule="no policy")
ASK = Decision(action="ask", rule="default for writes")


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(tool: str = "create", **arguments: Any) -> CallFacts:
    return CallFacts(server="tickets", tool=tool, arguments=arguments)


def held(count: int = 1, **arguments: Any) -> Holding:
    found = Holding()
    for _ in range(count):
        found.hold(call(**arguments), ALLOW)
    return found


def keep(plans: Plans, holds: Holding | None = None, owner: str = "me") -> Plan:
    return plans.keep(held() if holds is None else holds, owner, run_id="r1")


def test_a_held_call_has_a_number_and_the_runs_own_mark() -> None:
    """What the guest makes a placeholder of."""
    holds = Holding()
    first, second = holds.hold(call(), ALLOW), holds.hold(call(), ASK)
    assert first["held"] == {"plan": holds.plan, "number": 1, "call": "tickets.create"}
    assert second["held"] == {"plan": holds.plan, "number": 2, "call": "tickets.create"}
    assert len(holds.plan) == 16
    assert Holding().plan != holds.plan
    assert holds.count == 2


def test_a_held_call_keeps_what_it_takes_to_make_it() -> None:
    """Its tool's definition, its rules, what it needs, and what had been called by then."""
    holds, flow = Holding(), FlowState()
    tool = Tool(server="tickets", name="create", description="Create.")
    flow.note("web", "fetch", frozenset({"untrusted-input"}))
    rule = Decision(action="ask", rule="flow rule 'x'")
    holds.hold(call(), ALLOW)
    facts = CallFacts(
        server="tickets",
        tool="create",
        arguments={"parent": {WHOLE: write(holds.plan, 1, ["id"])}},
        definition=tool,
    )
    base = Decision(action="ask", rule="default for writes", effect="destructive")
    holds.hold(facts, base, [base, rule, ALLOW], flow)
    flow.note("mail", "read", frozenset({"private-data"}))
    first, second = holds.requests
    assert (first.digest, first.uses, first.asked) == ("", frozenset(), frozenset())
    assert second.digest.startswith("sha256:")
    assert second.uses == {1}
    assert second.asked == {"default for writes", "flow rule 'x'"}
    assert second.effect == "destructive"
    assert second.flow.read(["untrusted-input"])
    assert not second.flow.read(["private-data"])
    shown = holds.shown()[1]
    assert shown.arguments == {"parent": "‹result of #1 tickets.create›.id"}
    assert (shown.action, shown.effect) == ("ask", "destructive")
    assert shown.rule == "default for writes and flow rule 'x'"


def test_a_plan_holds_a_bounded_number_of_calls_and_of_bytes() -> None:
    """A loop without end ends here."""
    holds = held(holding.MAX_CALLS)
    with pytest.raises(CallBudgetError, match="1,000 calls at most"):
        holds.hold(call(), ALLOW)
    holds = Holding()
    large = "x" * (holding.MAX_CHARACTERS // 2 - 100)
    holds.hold(call(body=large), ALLOW)
    holds.hold(call(body=large), ALLOW)
    with pytest.raises(CallBudgetError, match="characters of JSON"):
        holds.hold(call(body=large), ALLOW)
    assert holds.count == 2


def test_a_call_that_is_refused_is_no_part_of_the_plan() -> None:
    """What the program was told is not held must not be made."""
    holds = held()
    for facts in (
        call(body=write(holds.plan, 2)),
        call(body=write(holds.plan, 1)[:-3]),
        call(write(holds.plan, 1)),
    ):
        if facts.tool != "create":
            facts = call("create", **{write(holds.plan, 1): 1})
        with pytest.raises(HeldResultError):
            holds.hold(facts, ALLOW)
    with pytest.raises(InvalidRequestError, match="name may have 256 characters, not 300"):
        holds.hold(call("x" * 300), ALLOW)
    assert holds.count == 1
    with pytest.raises(HeldResultError):
        holds.hold(CallFacts(server="tickets", tool=f"x{write('f' * 16, 1)}"), ALLOW)


def test_reads_that_mention_a_placeholder_are_found() -> None:
    """Of this run or of any: a server must not get one."""
    holds = held()
    assert holds.refers({"a": [write(holds.plan, 1)]})
    assert holds.refers({"a": write("f" * 16, 1)})
    assert holds.refers({"a": "HELDRESULT..."})
    assert not holds.refers({"a": "held results"})


def test_a_plan_is_taken_once() -> None:
    """A second time it is told who used it, and when."""
    plans = Plans()
    plan = keep(plans, held(2))
    assert len(plan.plan_id) == 32
    assert plan.seconds == holding.PLAN_SECONDS
    kept = plans.take(plan.plan_id, "me", run_id="r2")
    assert [request.number for request in kept.requests] == [1, 2]
    assert (kept.run_id, kept.plan) == ("r1", plan)
    with pytest.raises(UnknownPlanError, match=r"the run r2 took it at \d{4}-\d\d-\d\d .* UTC"):
        plans.take(plan.plan_id, "me", run_id="r3")
    plans.close(kept, "the run r2 applied it: 2 of 2 calls done")
    with pytest.raises(UnknownPlanError, match="r2 applied it: 2 of 2"):
        plans.take(plan.plan_id, "me", run_id="r3")


def test_a_plan_is_its_owners_and_for_others_as_if_it_were_not() -> None:
    """Not even that it exists, or was used, is told."""
    plans = Plans()
    plan = keep(plans)
    for _ in range(2):
        with pytest.raises(UnknownPlanError) as caught:
            plans.take(plan.plan_id, "you", run_id="r2")
        other = str(caught.value).replace(plan.plan_id, "ID")
        with pytest.raises(UnknownPlanError) as caught:
            plans.take("0" * 32, "you", run_id="r2")
        assert str(caught.value).replace("0" * 32, "ID") == other
        assert not plans.remembers(plan.plan_id, "you")
        if plans.remembers(plan.plan_id, "me"):
            break
        plans.take(plan.plan_id, "me", run_id="r2")


def test_a_plan_expires() -> None:
    """What its reads found may not be so any more; a second before, it can be applied."""
    time = Time()
    plans = Plans(time)
    plan, other = keep(plans), keep(plans)
    time.now += holding.PLAN_SECONDS - 1
    plans.take(other.plan_id, "me", run_id="r2")
    time.now += 1
    with pytest.raises(UnknownPlanError, match="expired 30 minutes after it was made"):
        plans.take(plan.plan_id, "me", run_id="r2")


def test_a_plan_that_was_given_back_can_be_taken_again() -> None:
    """Nobody could be asked; nothing was done."""
    time = Time()
    plans = Plans(time)
    plan = keep(plans)
    plans.give_back(plans.take(plan.plan_id, "me", run_id="r2"))
    kept = plans.take(plan.plan_id, "me", run_id="r3")
    plans.give_back(kept)
    time.now += holding.PLAN_SECONDS
    with pytest.raises(UnknownPlanError, match="expired"):
        plans.take(plan.plan_id, "me", run_id="r4")


def test_a_failed_or_spoiled_or_empty_run_has_no_plan_to_apply() -> None:
    """What it held is shown all the same."""
    plans = Plans()
    failed = plans.keep(held(2), "me", run_id="r", failed=True)
    assert (failed.plan_id, failed.seconds, len(failed.calls)) == ("", 0, 2)
    spoiled = held(2)
    spoiled.spoil("the disk is full")
    spoiled.spoil("again")
    plan = plans.keep(spoiled, "me", run_id="r")
    assert (plan.plan_id, plan.stopped, len(plan.calls)) == ("", "the disk is full", 2)
    empty = plans.keep(Holding(), "me", run_id="r")
    assert (empty.plan_id, empty.calls) == ("", ())
    assert repr(plans) == "<Plans kept=0 remembered=0>"


def test_a_withdrawn_plan_cannot_be_taken() -> None:
    """It could not be recorded."""
    plans = Plans()
    plan = keep(plans)
    gone = plans.withdraw(plan, "the disk is full")
    assert (gone.plan_id, gone.stopped) == ("", "the disk is full")
    with pytest.raises(UnknownPlanError):
        plans.take(plan.plan_id, "me", run_id="r")


def test_the_oldest_of_an_owner_make_room() -> None:
    """By number and by size; another owner's stay."""
    plans = Plans()
    others = keep(plans, owner="you")
    mine = [keep(plans) for _ in range(holding.MAX_PLANS + 1)]
    with pytest.raises(UnknownPlanError, match="newer plans took its place"):
        plans.take(mine[0].plan_id, "me", run_id="r")
    plans.take(mine[1].plan_id, "me", run_id="r")
    large = "x" * (holding.MAX_CHARACTERS - 100)
    big = [keep(plans, held(1, body=large)) for _ in range(5)]
    with pytest.raises(UnknownPlanError, match="newer plans"):
        plans.take(mine[-1].plan_id, "me", run_id="r")
    with pytest.raises(UnknownPlanError, match="newer plans"):
        plans.take(big[0].plan_id, "me", run_id="r")
    plans.take(big[-1].plan_id, "me", run_id="r")
    plans.take(others.plan_id, "you", run_id="r")


def test_all_owners_together_are_bounded_too() -> None:
    """However many callers there are."""
    plans = Plans()
    for number in range(holding.MAX_ALL_PLANS + holding.MAX_REMEMBERED + 10):
        keep(plans, owner=f"o{number}")
    assert repr(plans) == (
        f"<Plans kept={holding.MAX_ALL_PLANS} remembered={holding.MAX_REMEMBERED}>"
    )


async def test_an_approval_covers_the_reasons_that_the_plan_showed_and_no_others() -> None:
    """What became stricter since stops the plan."""
    holds = Holding()
    holds.hold(call(), ASK, [ASK])
    covered = Covered(Approval(), holds.requests[0])
    assert await covered.approve(call(), [ASK]) == Approval()
    stricter = Decision(action="ask", rule="flow rule 'x'", reason="after web.fetch")
    with pytest.raises(
        ApprovalNeededError, match=r"did not show \(flow rule 'x': after web\.fetch"
    ):
        await covered.approve(call(), [ASK, stricter])
    allowed = Holding()
    allowed.hold(call(), ALLOW, [ALLOW])
    with pytest.raises(ApprovalNeededError, match="default for writes"):
        await Covered(Approval(), allowed.requests[0]).approve(call(), [ASK])
