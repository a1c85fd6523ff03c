"""Two bridges that serve as one, on one store: a session continues in either, live in one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Executable

from bridge.errors import BridgeError
from bridge.event_loop import background_task
from bridge.runs import Engine
from bridge.sessions import checkpoints
from bridge.sessions.checkpoints import Checkpoints, Claims, Saved
from bridge.sessions.record import Record
from bridge.sessions.session import Session
from bridge.settings import Settings, store_of
from bridge.store.schema import sessions
from tests.engine_rig import settings_in
from tests.fakes.backend import FakeBackend
from tests.postgresql import url_for
from tests.raised import raises_code
from tests.session_rig import OWNER, reopened, run, told, value, waits_for
from tests.waiting import until, until_exists

ID = "0" * 32


@pytest.fixture
def settings(tmp_path: Path, each_database: str) -> Settings:
    return replace(settings_in(tmp_path), store=url_for(tmp_path))


@asynccontextmanager
async def pair(settings: Settings) -> AsyncIterator[tuple[Engine, Engine]]:
    async with (
        reopened(settings, FakeBackend(), replica="a") as one,
        reopened(settings, FakeBackend(), replica="b") as other,
    ):
        yield one, other


def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", 0.8)


def _has_claim(settings: Settings) -> bool:
    claimed = sessions.select().where(sessions.c.process != "")
    return bool(store_of(settings).query(claimed))


async def test_a_session_between_runs_continues_wherever_its_next_run_arrives(
    settings: Settings,
) -> None:
    async with pair(settings) as both:
        first = await run(both[0], "seen = [0]")
        session = told(first).session_id
        for number in range(1, 7):
            seen = await value(both[number % 2], f"seen.append({number}); seen", session=session)
            assert seen == list(range(number + 1))
        # What a bridge has of it is out of date only where another went on.
        assert await value(both[0], "len(seen)", session=session) == 7
        await until(lambda: not _has_claim(settings))


async def test_a_session_in_use_is_refused_elsewhere_by_the_name_of_the_replica(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with pair(settings) as (one, other):
        session = told(await run(one, "x = 1")).session_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_in, one, waits_for(go, said=begun) + "x = 2", session)
            await until_exists(begun)
            with raises_code("elsewhere", match="in use in replica 'a'"):
                await run(other, "x", session=session)
            go.touch()
        assert await value(other, "x", session=session) == 2


async def run_in(engine: Engine, code: str, session: str) -> None:
    await run(engine, code, session=session)


async def test_a_run_waits_for_another_replica_that_is_about_to_be_done(
    settings: Settings, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with pair(settings) as (one, other):
        session = told(await run(one, "x = 1")).session_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_in, one, waits_for(go, said=begun) + "x = 2", session)
            await until_exists(begun)
            tasks.start_soon(run_in, other, "x += 10", session)
            go.touch()
        assert await value(one, "x", session=session) == 12


async def test_a_session_that_was_ended_elsewhere_is_gone_here(settings: Settings) -> None:
    async with pair(settings) as (one, other):
        session = told(await run(one, "x = 1")).session_id
        await run(other, "", session=session, end_session=True)
        with raises_code("unknown_session"):
            await run(one, "x", session=session)
        await until(lambda: one.sessions.open == 0)


async def test_a_session_whose_state_cannot_be_saved_stays_where_it_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    async with pair(settings) as (one, other):
        session = told(await run(one, "x = 1")).session_id
        with monkeypatch.context() as small:
            small.setattr(checkpoints, "MAX_STATE_BYTES", 10)
            await run(one, "x = 2", session=session)
            with raises_code("elsewhere", match="could not be saved and is there alone"):
                await run(other, "x", session=session)
        assert await value(one, "x", session=session) == 2
        await until(lambda: not _has_claim(settings))
        assert await value(other, "x", session=session) == 2


async def test_a_dead_replicas_session_is_taken_over_and_the_result_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", 0.3)
    async with reopened(settings, FakeBackend(), replica="b") as engine:
        session = told(await run(engine, "x = 1")).session_id
        await until(lambda: not _has_claim(settings))
        store = store_of(settings)
        dead = Claims(store, "a")
        _, gone = await dead.claim(OWNER, session)
        assert gone == ""
        result = await run(engine, "x", session=session)
        assert result.result == 1
        await until(lambda: not _has_claim(settings))
        taken = Checkpoints(store, days=7, claims=dead)
        problem = taken.save(OWNER, Saved(session_id=session, name="work", run=9))
        assert "taken the session over" in problem
    async with reopened(settings, FakeBackend(), replica="c") as engine:
        await Claims(store, "a").claim(OWNER, session)
        result = await run(engine, "x", session=session)
        assert (
            "replica 'a' of the bridge had it, and was not heard of for 0.3 s" in told(result).note
        )


async def test_a_defect_in_the_bridge_is_told_once_and_repeats_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = iter(("a run",))

    def fail(record: Record) -> bool:
        next(met)
        raise RuntimeError("a defect")

    async with reopened(settings, FakeBackend(), replica="a") as engine:
        with monkeypatch.context() as broken:
            broken.setattr(Record, "opened", fail)
            with pytest.raises(BridgeError, match="The bridge failed"):
                await run(engine, "x = 1")
        assert next(met, None) is None
        with monkeypatch.context() as broken:
            # Not even a way to fail.
            broken.setattr(engine.sessions._services.checkpoints, "save", None)
            assert await value(engine, "1 + 1") == 2


async def test_a_claim_that_is_renewed_does_not_lapse(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    store = store_of(settings)
    owner, other = Claims(store, "a"), Claims(store, "b")
    await owner.claim(OWNER, ID)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(owner.renew, lambda key, bridge: pytest.fail(f"{key} went to {bridge}"))
        with raises_code("elsewhere"):
            await other.claim(OWNER, ID)
        tasks.cancel_scope.cancel()
    assert await other.claim(OWNER, ID) == (
        None,
        "replica 'a' of the bridge had it, and was not heard of for 0.8 s",
    )


async def test_one_of_many_that_ask_at_once_gets_a_session(settings: Settings) -> None:
    store = store_of(settings)
    live: list[str] = []

    async def use(name: str) -> None:
        mine = Claims(store, name)
        await mine.claim(OWNER, ID)
        live.append(name)
        assert live == [name]
        await anyio.lowlevel.checkpoint()
        live.remove(name)
        await mine.release(OWNER, ID)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(use, str(number))
    assert store.query(sessions.select()) == []


async def test_a_claim_that_could_not_be_released_is_released_once_the_store_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    store = store_of(settings)
    owner, other = Claims(store, "a"), Claims(store, "b")
    for name in (ID, "another"):
        await owner.claim(OWNER, name)
    with monkeypatch.context() as broken:
        broken.setattr(store, "execute", _fail)
        await owner.release(OWNER, ID)
    async with background_task(partial(owner.renew, lambda *_: pytest.fail("a loss"))):
        assert await other.claim(OWNER, ID) == (None, "")


def _fail(*_: object, **__: object) -> None:
    raise OSError("the store is away")


async def test_a_loss_is_noted_even_if_the_store_cannot_say_at_once_who_has_the_session(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(settings)
    owner, other = Claims(store, "a"), Claims(store, "b")
    await owner.claim(OWNER, ID)
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", 0.1)
    await anyio.sleep(0.2)
    await other.claim(OWNER, ID)
    failures, losses, query = iter((1, 2)), list[str](), store.query

    def fail_twice(statement: Executable) -> Any:
        if next(failures, None) is not None:
            raise OSError("the store is away")
        return query(statement)

    monkeypatch.setattr(store, "query", fail_twice)
    async with background_task(partial(owner.renew, lambda _, bridge: losses.append(bridge))):
        await until(lambda: bool(losses))
    assert losses == ["b"]
    assert not owner.holds(OWNER, ID)


async def test_a_save_that_is_repeated_because_its_answer_was_lost_keeps_the_claim(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(settings)
    owner, other = Claims(store, "a"), Claims(store, "b")
    kept = Checkpoints(store, days=7, claims=owner)
    saved = Saved(session_id=ID, name="work", run=1, data=b"x")
    await owner.claim(OWNER, ID)
    claim = dict(owner._held)
    assert kept.save(OWNER, saved, release=True) == ""
    # The store has released the claim, and this bridge does not know.
    owner._held.update(claim)
    assert kept.save(OWNER, saved) == ""
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", 0.5)
    async with background_task(partial(owner.renew, lambda *_: pytest.fail("a loss"))):
        with raises_code("elsewhere", match="'a'"):
            await other.claim(OWNER, ID)
    # If another bridge has claimed it since, the state is saved and the claim is lost.
    assert kept.save(OWNER, saved, release=True) == ""
    await other.claim(OWNER, ID)
    owner._held.update(claim)
    assert kept.save(OWNER, saved, release=True) == ""
    assert "replica 'b'" in kept.save(OWNER, replace(saved, run=2))


async def test_a_run_that_is_refused_in_an_open_session_leaves_no_claim(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(settings) as (one, other):
        session = told(await run(one, "x = 1")).session_id

        async def refuse(*_: object) -> None:
            raise BridgeError("there is no such package")

        with monkeypatch.context() as broken:
            broken.setattr(Session, "_resolved_packages", refuse)
            with pytest.raises(BridgeError, match="no such package"):
                await run(one, "x", session=session, packages=("nothing",))
        await until(lambda: not _has_claim(settings))
        assert await value(other, "x", session=session) == 1


async def test_a_run_that_arrives_while_the_bridge_ends_leaves_no_claim(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Claims.claim

    async def end_meanwhile(claims: Claims, owner: str, session_id: str) -> Any:
        sessions_of[0]._tasks = None
        return await claim(claims, owner, session_id)

    async with reopened(settings, FakeBackend(), replica="a") as engine:
        sessions_of = [engine.sessions]
        monkeypatch.setattr(Claims, "claim", end_meanwhile)
        with raises_code("session_limit", match="is ending"):
            await run(engine, "x = 1")
    assert not _has_claim(settings)
