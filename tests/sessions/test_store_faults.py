"""Two bridges on one PostgreSQL that one of them loses: no result reports state that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from bridge.errors import BridgeError, InvalidRequestError
from bridge.model import RunResult
from bridge.runs import Engine, program
from bridge.sessions import checkpoints
from bridge.sessions.checkpoints import Claims, SessionKey
from bridge.settings import Settings
from bridge.store import ServerUrl
from tests.engine_rig import settings_in
from tests.fakes.backend import FakeBackend
from tests.faulty_proxy import Fault, FaultyProxy
from tests.postgresql import Server, address
from tests.raised import raises_code
from tests.session_rig import reopened, run, told, value, waits_for
from tests.waiting import until, until_exists

pytestmark = pytest.mark.usefixtures("postgresql")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture(autouse=True)
def quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEASE_SECONDS", 0.8)


@asynccontextmanager
async def pair(
    settings: Settings, directory: Path, proxy: FaultyProxy
) -> AsyncIterator[tuple[Engine, Engine]]:
    """Open bridge a, which reaches the database through the proxy, and bridge b."""
    through = address(directory, port=proxy.port)
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                reopened(replace(settings, store=url), FakeBackend(), replica=name)
            )
            for name, url in (("a", through), ("b", address(directory)))
        ]
        stack.callback(setattr, proxy, "fault", "")
        yield opened[0], opened[1]


@pytest.mark.parametrize("fault", ["hang", "refuse"])
async def test_a_run_ends_once_its_bridge_learns_that_another_one_has_the_session(
    settings: Settings, tmp_path: Path, proxy: FaultyProxy, fault: Fault
) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    results: list[RunResult] = []
    async with pair(settings, tmp_path, proxy) as (one, other):
        session = told(await run(one, "x = ['first']")).session_id

        async def run_here() -> None:
            code = "x.append('a')\n" + waits_for(never, said=begun)
            results.append(await run(one, code, session=session, timeout=50))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_here)
            await until_exists(begun)
            proxy.fault = fault
            taken = await run(other, "x.append('b'); x", session=session)
            proxy.fault = ""
        assert taken.result == ["first", "b"]
        assert "was not heard of" in told(taken).note
        (result,) = results
        assert (result.status, told(result).state) == ("error", "unsaved")
        assert "'b'" in told(result).note
        assert await value(one, "x", session=session) == ["first", "b"]


@pytest.mark.parametrize("fault", ["hang", "refuse"])
async def test_a_save_that_failed_is_reported_and_made_as_soon_as_the_database_answers(
    settings: Settings,
    tmp_path: Path,
    proxy: FaultyProxy,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 1.0)
    begun, go = tmp_path / "begun", tmp_path / "go"
    results: list[RunResult] = []
    async with pair(settings, tmp_path, proxy) as (one, other):
        session = told(await run(one, "x = 1")).session_id

        async def run_here() -> None:
            code = waits_for(go, said=begun) + "x = 2"
            results.append(await run(one, code, session=session))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_here)
            await until_exists(begun)
            proxy.fault = fault
            go.touch()
        (result,) = results
        assert (result.status, told(result).state) == ("success", "unsaved")
        assert "could not write it down (the database server" in told(result).note
        assert one.sessions.unsaved == 1
        proxy.fault = ""

        seen = None
        while seen is None:
            # Until the claim is released, b says that a has the session.
            with suppress(InvalidRequestError):
                seen = await value(other, "x", session=session)
        assert seen == 2
        await until(lambda: one.sessions.unsaved == 0)


@pytest.mark.parametrize("delay", [0.0, 0.05])
async def test_no_state_that_was_reported_kept_is_gone(
    settings: Settings, tmp_path: Path, proxy: FaultyProxy, delay: float
) -> None:
    faults: tuple[Fault, ...] = ("", "refuse", "", "refuse", "refuse", "")
    proxy.delay = delay
    async with pair(settings, tmp_path, proxy) as (one, other):
        session = told(await run(one, "seen = []")).session_id
        kept = set[int]()
        for number, fault in enumerate(faults):
            proxy.fault = fault
            with suppress(BridgeError):
                result = await run(one, f"seen.append({number}); seen", session=session)
                if told(result).state != "unsaved":
                    assert isinstance(result.result, list)
                    kept |= set(result.result)
            proxy.fault = ""
        assert kept <= set(await value(one, "seen", session=session))
        assert kept <= set(await value(other, "seen", session=session))
        assert {0, 2, 5} <= kept


async def test_while_the_database_is_silent_runs_that_need_none_answer_at_once(
    settings: Settings, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 40.0)
    answered: list[int] = []
    async with pair(replace(settings, runs=100), tmp_path, proxy) as (one, _):
        await run(one, "1", session="")

        async def wait(number: int) -> None:
            with suppress(BridgeError):
                code = f"open('out/{number}', 'w').write('x')" if number % 2 else "1"
                await run(one, code, session="" if number % 2 else f"s{number}")
            answered.append(number)

        async with anyio.create_task_group() as tasks:
            proxy.fault = "hang"
            for number in range(96):
                tasks.start_soon(wait, number)
            await until(lambda: one.queue.taken > 44)
            with anyio.fail_after(20):
                for _ in range(3):
                    assert await value(one, "1", session="") == 1
            assert not answered
            proxy.fault = "refuse"


async def test_a_run_in_a_session_costs_few_statements(
    settings: Settings, tmp_path: Path, postgresql: Server
) -> None:
    url = address(tmp_path).text
    logged = replace(settings, store=ServerUrl(f"{url}%20-clog_statement%3Dall"))
    async with reopened(logged, FakeBackend(), replica="a") as engine:
        session = told(await run(engine, "x = 1")).session_id
        await value(engine, "x", session=session)
        postgresql.log.clear()
        assert await value(engine, "x", session=session) == 1
        await until(lambda: any("UPDATE sessions" in line for line in postgresql.log))
    statements = [line for line in postgresql.log if "statement: " in line or "execute" in line]
    assert len(statements) <= 8, statements
    assert sum("COMMIT" in line for line in statements) <= 3, statements


@pytest.mark.parametrize("moment", ["before the claim", "after it"])
async def test_state_that_cannot_be_read_for_a_moment_is_not_replaced(
    settings: Settings,
    tmp_path: Path,
    proxy: FaultyProxy,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = Claims._try

    def claim_and_lose(claims: Claims, key: SessionKey) -> object:
        claimed = claim(claims, key)
        proxy.fault = "refuse"
        return claimed

    async with pair(settings, tmp_path, proxy) as (one, other):
        await run(other, "x = 'kept'")
        with monkeypatch.context() as patch:
            if moment == "after it":
                patch.setattr(Claims, "_try", claim_and_lose)
            else:
                proxy.fault = "refuse"
            with raises_code("store_unavailable", match="Nothing was run: .* cannot be read"):
                await run(one, "x = 'new'")
        proxy.fault = ""
        assert await value(other, "x") == "kept"


async def test_a_bridge_that_cannot_renew_its_claim_begins_no_run_with_it(
    settings: Settings, tmp_path: Path, proxy: FaultyProxy
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with pair(settings, tmp_path, proxy) as (one, other):
        session = told(await run(one, "x = ['first']")).session_id
        async with anyio.create_task_group() as tasks:
            code = waits_for(go, said=begun) + "x.append('a')"
            tasks.start_soon(partial(run, one, code, session=session))
            await until_exists(begun)
            proxy.fault = "refuse"
            go.touch()
        assert one.sessions.unsaved == 1
        assert await value(other, "x.append('b'); x", session=session) == ["first", "b"]
        with raises_code("store_unavailable", match="Nothing was run"):
            await run(one, "x", session=session)
        proxy.fault = ""
        assert await value(one, "x", session=session) == ["first", "b"]


async def test_a_state_that_the_sandbox_did_not_send_in_time_is_not_reported_kept(
    settings: Settings, tmp_path: Path, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = replace(program.SAVE_LIMITS, timeout=0.5)
    monkeypatch.setattr(program, "SAVE_LIMITS", quick)
    deaf = """
import time
class Deaf:
    def __reduce__(self):
        while True:
            try: time.sleep(100)
            except BaseException: pass
x = Deaf()
"""
    async with pair(settings, tmp_path, proxy) as (one, other):
        session = told(await run(one, "y = 1")).session_id
        report = told(await run(one, deaf, session=session))
        assert (report.state, "is not saved" in report.note) == ("unsaved", True)
        assert await value(other, "y", session=session) == 1
