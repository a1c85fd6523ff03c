"""How long a plan can be applied, how often and by which caller."""

from __future__ import annotations

from pathlib import Path

from bridge.gate import held_calls as calls
from bridge.gate.held_calls import HeldCalls
from bridge.model import Plan
from bridge.plans import plan_store as kept_plans
from bridge.plans.plan_store import Plans
from tests.audit_rig import FakeClock
from tests.gate.held_calls.test_calls import held
from tests.postgresql import store_at
from tests.raised import raises_code


async def keep(plans: Plans, holds: HeldCalls | None = None, owner: str = "me") -> Plan:
    return await plans.keep(held() if holds is None else holds, owner, run_id="r1")


async def test_a_plan_expires(tmp_path: Path) -> None:
    time = FakeClock()
    plans = Plans(store_at(tmp_path), time)
    plan, other = await keep(plans), await keep(plans)
    time.now += kept_plans.PLAN_SECONDS - 1
    await plans.take(other.plan_id, "me", run_id="r2")
    time.now += 1
    with raises_code("unknown_plan", match="expired 30 minutes after it was made"):
        await plans.take(plan.plan_id, "me", run_id="r2")


async def test_a_failed_or_spoiled_or_empty_run_has_no_plan_to_apply(tmp_path: Path) -> None:
    plans = Plans(store_at(tmp_path))
    failed = await plans.keep(held(2), "me", run_id="r", failed=True)
    assert (failed.plan_id, failed.seconds, len(failed.calls)) == ("", 0, 2)
    spoiled = held(2)
    spoiled.spoil("the disk is full")
    spoiled.spoil("again")
    plan = await plans.keep(spoiled, "me", run_id="r")
    assert (plan.plan_id, plan.stopped, len(plan.calls)) == ("", "the disk is full", 2)
    empty = await plans.keep(HeldCalls(), "me", run_id="r")
    assert (empty.plan_id, empty.calls) == ("", ())
    assert repr(plans) == "<Plans kept=0 remembered=0>"


async def test_a_withdrawn_plan_cannot_be_taken(tmp_path: Path) -> None:
    plans = Plans(store_at(tmp_path))
    plan = await keep(plans)
    gone = await plans.withdraw(plan, "me", "the disk is full")
    assert (gone.plan_id, gone.stopped) == ("", "the disk is full")
    with raises_code("unknown_plan"):
        await plans.take(plan.plan_id, "me", run_id="r")


async def test_the_oldest_of_an_owner_make_room(tmp_path: Path) -> None:
    plans = Plans(store_at(tmp_path))
    others = await keep(plans, owner="you")
    mine = [await keep(plans) for _ in range(kept_plans.MAX_PLANS + 1)]
    with raises_code("unknown_plan", match="newer plans took its place"):
        await plans.take(mine[0].plan_id, "me", run_id="r")
    await plans.take(mine[1].plan_id, "me", run_id="r")
    large = "x" * (calls.MAX_CHARACTERS - 100)
    big = [await keep(plans, held(1, body=large)) for _ in range(5)]
    with raises_code("unknown_plan", match="newer plans"):
        await plans.take(mine[-1].plan_id, "me", run_id="r")
    with raises_code("unknown_plan", match="newer plans"):
        await plans.take(big[0].plan_id, "me", run_id="r")
    await plans.take(big[-1].plan_id, "me", run_id="r")
    await plans.take(others.plan_id, "you", run_id="r")


async def test_all_owners_together_are_bounded_too(tmp_path: Path) -> None:
    plans = Plans(store_at(tmp_path))
    for number in range(kept_plans.MAX_ALL_PLANS + 1_000 + 10):
        await keep(plans, owner=f"o{number}")
    assert repr(plans) == (f"<Plans kept={kept_plans.MAX_ALL_PLANS} remembered={1_000}>")
