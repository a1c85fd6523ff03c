"""Plans that a bridge applies, once, or any of several on a PostgreSQL server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from sqlalchemy import event

from bridge.errors import UnknownError
from bridge.gate import held_calls as calls
from bridge.gate.held_calls import HeldCalls
from bridge.gate.policy import FlowState
from bridge.model import Plan, Provenance, Tool, owner_digest
from bridge.plans import plan_store
from bridge.plans.plan_store import Plans, StoredPlan
from bridge.runs import Engine
from bridge.store import ServerUrl
from bridge.store.postgresql import ServerStore
from tests.audit_rig import FakeClock
from tests.engine_rig import settings_in
from tests.faulty_proxy import FaultyProxy
from tests.gate.test_held_calls import ALLOW, call, held
from tests.plans.plan_rig import THREE, applied, opened, planned
from tests.postgresql import Server, address, server, store_at
from tests.raised import raises_code
from tests.recorder_rig import recorded, recorder


@pytest.fixture(params=["one bridge", "two bridges"])
def bridges(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Plans, Plans]:
    """Two of one store, or one twice, which keeps its plans in memory."""
    if request.param == "one bridge":
        return (Plans(store_at(tmp_path)),) * 2
    found: tuple[Plans, Plans] = request.getfixturevalue("two")
    return found


@pytest.fixture
def two(tmp_path: Path, postgresql: Server) -> tuple[Plans, Plans]:
    return Plans(store_at(tmp_path)), Plans(store_at(tmp_path))


def a_plan() -> HeldCalls:
    flow = FlowState()
    flow.add_provenance("x", Provenance(labels=frozenset({"private"}), servers=frozenset({"s"})))
    tool = Tool(server="tickets", name="create", input_schema={"type": "object"})
    found = HeldCalls()
    odd = call(
        text="half \ud800 and nothing \0",
        numbers=[1.5, float("inf"), 10**40],
        many=[None, {"half \ud800": True}],
    )
    found.hold(replace(odd, definition=tool, server_definition="d"), ALLOW, flow=flow)
    found.hold(call(), replace(ALLOW, action="ask", labels=frozenset({"b"})))
    return found


def facts(kept: StoredPlan) -> list[object]:
    return [(vars(one) | {"flow": one.flow.document()}) for one in kept.requests]


async def test_bridges_share_plans(bridges: tuple[Plans, Plans]) -> None:
    first, second = bridges
    made = a_plan()
    plan = await first.keep(made, "me", run_id="r1")
    kept = await second.take(plan.plan_id, "me", run_id="r2")
    assert (kept.plan, kept.run_id, kept.owner) == (plan, "r1", "me")
    assert facts(kept) == [(vars(one) | {"flow": one.flow.document()}) for one in made.requests]
    for plans in bridges:
        with raises_code("unknown_plan", match=r"the run r2 took it at \d{4}"):
            await plans.take(plan.plan_id, "me", run_id="r3")
    await second.close(kept.plan_id, "me", "it was applied: 2 of 2 calls done")
    with raises_code("unknown_plan", match="2 of 2 calls done"):
        await first.take(plan.plan_id, "me", run_id="r3")


async def test_one_of_many_takes_a_plan(bridges: tuple[Plans, Plans]) -> None:
    plan = await bridges[0].keep(held(), "me", run_id="r1")
    taken: list[StoredPlan] = []
    refused: list[str] = []

    async def take(number: int) -> None:
        try:
            taken.append(await bridges[number % 2].take(plan.plan_id, "me", run_id=f"r{number}"))
        except UnknownError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(take, number)
    assert (len(taken), len(refused)) == (1, 9)
    assert all("took it" in text for text in refused)


async def test_a_plan_has_one_owner(bridges: tuple[Plans, Plans]) -> None:
    plan = await bridges[0].keep(held(), "me", run_id="r1")
    for plan_id, owner in ((plan.plan_id, "you"), ("0" * 32, "me"), ("a\0\ud800", "me")):
        with raises_code("unknown_plan", match="There is no plan"):
            await bridges[1].take(plan_id, owner, run_id="r2")
    kept = await bridges[1].take(plan.plan_id, "me", run_id="r2")
    assert kept.plan == plan


async def test_a_returned_plan_is_available(bridges: tuple[Plans, Plans]) -> None:
    first, second = bridges
    plan = await first.keep(held(), "me", run_id="r1")
    await second.give_back(await second.take(plan.plan_id, "me", run_id="r2"))
    assert (await first.take(plan.plan_id, "me", run_id="r3")).plan == plan


async def test_plans_of_other_versions_stay(two: tuple[Plans, Plans], tmp_path: Path) -> None:
    plan_id, whose = "0" * 32, owner_digest("me")
    with store_at(tmp_path).writing() as kept:
        kept.put("plan", whose, plan_id, b'{"of": "tomorrow"}')
    with raises_code("unknown_plan", match="another version of the bridge made it"):
        await two[0].take(plan_id, "me", run_id="r1")
    with store_at(tmp_path).reading() as kept:
        assert kept.get("plan", whose, plan_id) == b'{"of": "tomorrow"}'


async def test_a_plan_with_tokens_stays_at_its_bridge(two: tuple[Plans, Plans]) -> None:
    first, second = two
    plan = await first.keep(held(), "me", run_id="r1", here=True)
    with raises_code("unknown_plan"):
        await second.take(plan.plan_id, "me", run_id="r2")
    kept = await first.take(plan.plan_id, "me", run_id="r2")
    assert kept.plan == plan


async def test_withdrawn_expired_and_dropped_plans_are_gone(
    bridges: tuple[Plans, Plans], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = bridges
    plan = await keep(first)
    gone = await first.withdraw(plan, "me", "the disk is full")
    assert (gone.plan_id, gone.stopped) == ("", "the disk is full")
    monkeypatch.setattr(plan_store, "MAX_PLANS", 2)
    many = [await keep(first) for _ in range(3)]
    if first is not second:
        assert caplog.messages == ["removed 1 plan: expired, or beyond the limits"]
        monkeypatch.setattr(plan_store, "PLAN_SECONDS", -1.0)
    for each in (plan, many[0], *([many[2]] if first is not second else [])):
        with raises_code("unknown_plan"):
            await second.take(each.plan_id, "me", run_id="r2")


@pytest.mark.usefixtures("postgresql")
async def test_without_the_server_a_plan_is_not_kept_and_none_is_lost(tmp_path: Path) -> None:
    with server() as own:
        plans = Plans(ServerStore(tmp_path, ServerUrl(own.url())))
        plan = await plans.keep(held(), "me", run_id="r1")
        own.stop()
        with raises_code("store_unavailable", match="cannot be reached") as refused:
            await plans.take(plan.plan_id, "me", run_id="r2")
        assert refused.value.remedy
        lost = await plans.keep(held(), "me", run_id="r3")
        assert lost.plan_id == ""
        assert "cannot be reached" in lost.stopped
        own.start()
        kept = await plans.take(plan.plan_id, "me", run_id="r2")
        assert kept.plan == plan


async def keep(plans: Plans, holds: HeldCalls | None = None, owner: str = "me") -> Plan:
    return await plans.keep(held() if holds is None else holds, owner, run_id="r1")


async def test_a_plan_expires(tmp_path: Path) -> None:
    time = FakeClock()
    plans = Plans(store_at(tmp_path), time)
    plan, other = await keep(plans), await keep(plans)
    time.now += plan_store.PLAN_SECONDS - 1
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
    assert (plans._kept, plans._gone) == ({}, {})


async def test_the_oldest_of_an_owner_make_room(tmp_path: Path) -> None:
    plans = Plans(store_at(tmp_path))
    others = await keep(plans, owner="you")
    mine = [await keep(plans) for _ in range(plan_store.MAX_PLANS + 1)]
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
    for number in range(plan_store.MAX_ALL_PLANS + 1_000 + 10):
        await keep(plans, owner=f"o{number}")
    assert (len(plans._kept), len(plans._gone)) == (plan_store.MAX_ALL_PLANS, 1_000)


async def test_a_bridge_makes_the_calls_of_another_bridge_s_plan_unless_its_policy_refuses_them(
    tmp_path: Path, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_STORE", address(tmp_path).text)
    log, engines = tmp_path / "log", list[Engine]()
    denies = '[[policy.rules]]\nname = "none"\ntool = "create"\naction = "deny"\n'
    async with AsyncExitStack() as stack:
        for name, policy in (("a", ""), ("b", denies), ("c", "")):
            (home := tmp_path / name).mkdir()
            made = opened(settings_in(home), [recorder("log", log)], policy=policy, tmp_path=home)
            engines.append(await stack.enter_async_context(made))
        one, strict, other = engines
        _, plan = await planned(one, THREE)
        for _ in range(2):
            assert (await applied(strict, plan)).reason == "policy"
        assert recorded(log) == []
        result = await applied(other, plan)
        assert result.status == "success", result
        with raises_code("unknown_plan", match="it was applied by the run"):
            await applied(one, plan)
    assert len(recorded(log)) == 3


async def test_a_plan_whose_commit_is_cut_off_is_taken_once_or_not_at_all(
    tmp_path: Path, proxy: FaultyProxy
) -> None:
    distant = ServerStore(tmp_path, address(tmp_path, port=proxy.port))
    far, near = Plans(distant), Plans(store_at(tmp_path))
    plan = await near.keep(held(), "me", run_id="r1")
    distant.check()
    event.listen(distant._engine(), "commit", lambda _: setattr(proxy, "fault", "refuse"))
    with raises_code("store_unavailable", match="it may have been made"):
        await far.take(plan.plan_id, "me", run_id="r2")
    proxy.fault = ""
    distant.close()
    taken = await near.take(plan.plan_id, "me", run_id="r3")
    assert taken.plan == plan
