"""How long a plan can be applied, how often and by which caller."""

from __future__ import annotations

from bridge.gate import held_calls as calls
from bridge.gate.held_calls import HeldCalls
from bridge.model import Plan
from bridge.plans import plan_store as kept_plans
from bridge.plans.plan_store import PlanStore
from tests.audit_rig import FakeClock
from tests.gate.held_calls.test_calls import held
from tests.raised import raises_code


def keep(plans: PlanStore, holds: HeldCalls | None = None, owner: str = "me") -> Plan:
    return plans.keep(held() if holds is None else holds, owner, run_id="r1")


def test_a_plan_expires() -> None:
    """What its reads found may not be so any more; a second before, it can be applied."""
    time = FakeClock()
    plans = PlanStore(time)
    plan, other = keep(plans), keep(plans)
    time.now += kept_plans.PLAN_SECONDS - 1
    plans.take(other.plan_id, "me", run_id="r2")
    time.now += 1
    with raises_code("unknown_plan", match="expired 30 minutes after it was made"):
        plans.take(plan.plan_id, "me", run_id="r2")


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
