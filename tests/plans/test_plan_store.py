"""How long a plan can be applied, how often and by which caller."""

from __future__ import annotations

from typing import Any

from bridge.gate.decision import CallFacts, Decision
from bridge.gate.held_calls import HeldCalls, calls
from bridge.model import Plan
from bridge.plans import plan_store as kept_plans
from bridge.plans.plan_store import PlanStore
from tests.raised import raises_code

ALLOW = Decision(action="allow", rule="no policy")


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(tool: str = "create", **arguments: Any) -> CallFacts:
    return CallFacts(server="tickets", tool=tool, arguments=arguments)


def held(count: int = 1, **arguments: Any) -> HeldCalls:
    found = HeldCalls()
    for _ in range(count):
        found.hold(call(**arguments), ALLOW)
    return found


def keep(plans: PlanStore, holds: HeldCalls | None = None, owner: str = "me") -> Plan:
    return plans.keep(held() if holds is None else holds, owner, run_id="r1")


def test_a_plan_is_taken_once() -> None:
    plans = PlanStore()
    plan = keep(plans, held(2))
    assert len(plan.plan_id) == 32
    assert plan.seconds == kept_plans.PLAN_SECONDS
    kept = plans.take(plan.plan_id, "me", run_id="r2")
    assert [request.number for request in kept.requests] == [1, 2]
    assert (kept.run_id, kept.plan) == ("r1", plan)
    with raises_code("unknown_plan", match=r"the run r2 took it at \d{4}-\d\d-\d\d .* UTC"):
        plans.take(plan.plan_id, "me", run_id="r3")
    plans.close(kept, "the run r2 applied it: 2 of 2 calls done")
    with raises_code("unknown_plan", match="r2 applied it: 2 of 2"):
        plans.take(plan.plan_id, "me", run_id="r3")


def test_a_plan_is_its_owners_and_for_others_as_if_it_were_not() -> None:
    plans = PlanStore()
    plan = keep(plans)
    for _ in range(2):
        with raises_code("unknown_plan") as caught:
            plans.take(plan.plan_id, "you", run_id="r2")
        other = str(caught.value).replace(plan.plan_id, "ID")
        with raises_code("unknown_plan") as caught:
            plans.take("0" * 32, "you", run_id="r2")
        assert str(caught.value).replace("0" * 32, "ID") == other
        assert not plans.remembers(plan.plan_id, "you")
        if plans.remembers(plan.plan_id, "me"):
            break
        plans.take(plan.plan_id, "me", run_id="r2")


def test_a_plan_expires() -> None:
    """What its reads found may not be so any more; a second before, it can be applied."""
    time = Time()
    plans = PlanStore(time)
    plan, other = keep(plans), keep(plans)
    time.now += kept_plans.PLAN_SECONDS - 1
    plans.take(other.plan_id, "me", run_id="r2")
    time.now += 1
    with raises_code("unknown_plan", match="expired 30 minutes after it was made"):
        plans.take(plan.plan_id, "me", run_id="r2")


def test_a_plan_that_was_given_back_can_be_taken_again() -> None:
    time = Time()
    plans = PlanStore(time)
    plan = keep(plans)
    plans.give_back(plans.take(plan.plan_id, "me", run_id="r2"))
    kept = plans.take(plan.plan_id, "me", run_id="r3")
    plans.give_back(kept)
    time.now += kept_plans.PLAN_SECONDS
    with raises_code("unknown_plan", match="expired"):
        plans.take(plan.plan_id, "me", run_id="r4")


def test_a_failed_or_spoiled_or_empty_run_has_no_plan_to_apply() -> None:
    plans = PlanStore()
    failed = plans.keep(held(2), "me", run_id="r", failed=True)
    assert (failed.plan_id, failed.seconds, len(failed.calls)) == ("", 0, 2)
    spoiled = held(2)
    spoiled.spoil("the disk is full")
    spoiled.spoil("again")
    plan = plans.keep(spoiled, "me", run_id="r")
    assert (plan.plan_id, plan.stopped, len(plan.calls)) == ("", "the disk is full", 2)
    empty = plans.keep(HeldCalls(), "me", run_id="r")
    assert (empty.plan_id, empty.calls) == ("", ())
    assert repr(plans) == "<Plans kept=0 remembered=0>"


def test_a_withdrawn_plan_cannot_be_taken() -> None:
    """It could not be recorded."""
    plans = PlanStore()
    plan = keep(plans)
    gone = plans.withdraw(plan, "the disk is full")
    assert (gone.plan_id, gone.stopped) == ("", "the disk is full")
    with raises_code("unknown_plan"):
        plans.take(plan.plan_id, "me", run_id="r")


def test_the_oldest_of_an_owner_make_room() -> None:
    plans = PlanStore()
    others = keep(plans, owner="you")
    mine = [keep(plans) for _ in range(kept_plans.MAX_PLANS + 1)]
    with raises_code("unknown_plan", match="newer plans took its place"):
        plans.take(mine[0].plan_id, "me", run_id="r")
    plans.take(mine[1].plan_id, "me", run_id="r")
    large = "x" * (calls.MAX_CHARACTERS - 100)
    big = [keep(plans, held(1, body=large)) for _ in range(5)]
    with raises_code("unknown_plan", match="newer plans"):
        plans.take(mine[-1].plan_id, "me", run_id="r")
    with raises_code("unknown_plan", match="newer plans"):
        plans.take(big[0].plan_id, "me", run_id="r")
    plans.take(big[-1].plan_id, "me", run_id="r")
    plans.take(others.plan_id, "you", run_id="r")


def test_all_owners_together_are_bounded_too() -> None:
    plans = PlanStore()
    for number in range(kept_plans.MAX_ALL_PLANS + 1_000 + 10):
        keep(plans, owner=f"o{number}")
    assert repr(plans) == (f"<Plans kept={kept_plans.MAX_ALL_PLANS} remembered={1_000}>")
