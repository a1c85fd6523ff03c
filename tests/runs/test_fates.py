"""Two bridges on one PostgreSQL: what one knows of a run of the other, and does not make again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from bridge.cli.records import show_run
from bridge.errors import UnknownError
from bridge.gate import fates
from bridge.model import RunResult
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import ServerUrl, schema
from tests.engine_rig import ListFinder, engine_on, run_program, settings_in
from tests.fakes.backend import FakeBackend
from tests.faulty_proxy import FaultyProxy, faulty_proxy
from tests.plans.plan_rig import applied, planned
from tests.postgresql import PASSWORD, ROLE, Server, store_at, url_for
from tests.raised import raises_code
from tests.recorder_rig import recorded, recorder, tools_recorded
from tests.runs.test_retry import POLICY
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("postgresql")

ONE, SLOW, TWO = (
    f"await mcp_notes.{call}\n"
    for call in ("create(title='one')", "slow(text='x')", "create(title='two')")
)
UNPINNED = f"[policy]\npin = false\n{POLICY}"  # Pins need the database.
READ = "await mcp_notes.read_note(topic='a')\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "ALIVE_SECONDS", 1.0)
    monkeypatch.setattr(fates, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr("bridge.store.heartbeat.BEAT_SECONDS", 0.1)


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(postgresql.port) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def titles(log: Path) -> list[str]:
    return [given["title"] for tool, given in recorded(log) if tool == "create"]


@asynccontextmanager
async def pair(directory: Path, proxy: FaultyProxy) -> AsyncIterator[tuple[Engine, Engine]]:
    """Open bridge a, which reaches the database through the proxy, and bridge b."""
    direct = url_for(directory)
    assert direct is not None
    login, query = f"{ROLE}:{quote(PASSWORD, safe='')}", direct.text.rpartition("&")[2]
    through = ServerUrl(f"postgresql://{login}@127.0.0.1:{proxy.port}/postgres?{query}")
    config = directory / "config.toml"
    config.write_text(UNPINNED)
    finder = ListFinder(recorder("notes", directory / "log", notes={"a": "text"}))
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                engine_on(FakeBackend(), bridge(directory, name, url), config=config, finder=finder)
            )
            for name, url in (("a", through), ("b", direct))
        ]
        stack.callback(setattr, proxy, "fault", "")
        yield engines[0], engines[1]


def bridge(directory: Path, name: str, url: ServerUrl | None) -> Settings:
    (directory / name).mkdir(exist_ok=True)
    return replace(settings_in(directory / name), store=url, replica=name)


def row_of(directory: Path, run_id: str) -> Any:
    rows = store_at(directory).query(schema.runs.select().where(schema.runs.c.id == run_id))
    return rows[0] if rows else None


async def lost(engine: Engine) -> None:
    """Wait until the run's bridge was not heard of for long enough."""
    status: object = ""
    while status != "lost":
        fate = await engine.gate.fates.find("f" * 32, "")
        assert fate is not None
        status = fate.record["status"]


async def test_a_retry_in_another_bridge_repeats_no_call_of_a_bridge_that_is_gone(
    tmp_path: Path, proxy: FaultyProxy, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results: list[RunResult] = []
    async with pair(tmp_path, proxy) as (one, other), anyio.create_task_group() as tasks:

        async def cut_off() -> None:
            code = READ + ONE + SLOW + TWO
            results.append(await run_program(one, code, run_id="f" * 32))

        tasks.start_soon(cut_off)
        await until(lambda: "slow" in tools_recorded(log))
        with raises_code("invalid_request", match="cannot be retried here yet: bridge 'a' runs it"):
            await run_program(other, READ, retry_of="f" * 32)
        proxy.fault = "refuse"
        await lost(other)
        first = await run_program(other, READ + ONE, retry_of="f" * 32)
        assert "notes.create" in first.error
        assert "did happen, and this bridge does not have its result" in first.error
        assert "bridge 'a' was not heard of for" in first.error
        assert "notes.create was sent and answered" in first.error
        assert "notes.slow was sent without an answer" in first.error
        assert "known there alone" not in first.error
        second = await run_program(other, SLOW, retry_of="f" * 32)
        assert "may or may not have happened" in second.error
        assert tools_recorded(log) == ["read_note", "create", "slow", "read_note"]
        third = await run_program(other, TWO, retry_of="f" * 32)
        assert third.status == "success"
        await show_run(bridge(tmp_path, "c", url_for(tmp_path)), third.run_id[:12])
        assert "bridge 'b' has ended it" in capsys.readouterr().out

        # Bridge a is not dead. It makes no call that the retry may have made.
        proxy.fault = ""
        await until(lambda: not one.heartbeat.silence)
        await run_program(one, "await mcp_notes.release()")
        await until(lambda: bool(results))
        assert third.run_id in results[0].error
    assert titles(log) == ["one", "two"]


async def test_bridges_continue_one_chain_of_retries(
    tmp_path: Path, proxy: FaultyProxy, log: Path
) -> None:
    async with pair(tmp_path, proxy) as (one, other):
        first = await run_program(one, ONE + "1 / 0")
        second = await run_program(other, TWO, retry_of=first.run_id)
        assert second.status == "success"
        third = await run_program(one, ONE + TWO, retry_of=first.run_id)
        assert f"another retry of the same run, {second.run_id}" in third.error
        for engine in (one, other):
            fourth = await run_program(engine, TWO, retry_of=second.run_id)
            assert fourth.status == ("success" if engine is other else "error"), fourth.error
        # The bridge that made a call has its result.
        assert (await run_program(one, ONE, retry_of=first.run_id)).replayed
        last = await run_program(other, ONE, retry_of=first.run_id)
        assert "notes.create was sent and answered" in last.error
    assert titles(log) == ["one", "two"]


async def test_a_run_has_a_complete_row_or_none(
    tmp_path: Path, proxy: FaultyProxy, log: Path
) -> None:
    async with pair(tmp_path, proxy) as (one, other):
        proxy.fault = "refuse"
        await until(lambda: bool(one.heartbeat.silence))
        first = await run_program(one, ONE)
        assert first.status == "success"
        with raises_code("unknown_run", match="There is no journal"):
            await run_program(other, ONE, retry_of=first.run_id)
        proxy.fault = ""
        await until(lambda: row_of(tmp_path, first.run_id) is not None)
        again = await run_program(other, ONE, retry_of=first.run_id)
        assert "bridge 'a' has ended it; notes.create was sent and answered" in again.error

        results: list[RunResult] = []

        async def refused() -> None:
            results.append(await run_program(one, SLOW + TWO))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused)
            await until(lambda: "slow" in tools_recorded(log))
            proxy.fault = "refuse"
            await until(lambda: bool(one.heartbeat.silence))
            # `release` changes something too, in a run that has no row.
            await run_program(one, "await mcp_notes.release()")
        assert "notes.create is not made: the shared store cannot record it" in results[0].error
    assert titles(log) == ["one"]


async def test_a_run_without_changes_costs_no_statement_and_a_change_two(
    tmp_path: Path, postgresql: Server
) -> None:
    url = url_for(tmp_path)
    assert url is not None
    logged = ServerUrl(f"{url.text}%20-clog_statement%3Dall")
    config = tmp_path / "config.toml"
    config.write_text(UNPINNED)
    finder = ListFinder(recorder("notes", tmp_path / "log", notes={"a": "text"}))
    settings = bridge(tmp_path, "a", logged)
    async with engine_on(FakeBackend(), settings, config=config, finder=finder) as engine:
        await run_program(engine, READ + ONE)

        def statements() -> int:
            return sum(" runs" in line and "INSERT" in line for line in postgresql.log)

        await until(lambda: statements() == 2)
        expected = 2
        for code, count in (("1", 0), (READ, 0), (ONE, 2), (ONE + TWO, 3), ("1", 0), (ONE, 2)):
            await run_program(engine, code)
            expected += count
            await until(lambda wanted=expected: statements() >= wanted)  # type: ignore[misc]
            assert statements() == expected, code


async def test_a_plan_that_a_bridge_which_is_gone_applied_in_part_says_so(
    tmp_path: Path, proxy: FaultyProxy, log: Path
) -> None:
    async with pair(tmp_path, proxy) as (one, other):
        _, plan = await planned(one, ONE + SLOW + TWO)
        with anyio.CancelScope() as cut, suppress(UnknownError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(applied, one, plan)
                await until(lambda: "slow" in tools_recorded(log))
                proxy.fault = "refuse"
                said = ""
                while "not heard of" not in said:
                    with raises_code("unknown_plan", match="took it at") as refused:
                        await applied(other, plan)
                    said = str(refused.value)
                cut.cancel()
        assert "the bridge 'a' was not heard of for" in said
        assert "notes.create was sent and answered; notes.slow was sent without an answer" in said
        run_id = said.rpartition('retry_of="')[2][:32]
        last = await run_program(other, TWO + SLOW, retry_of=run_id)
        assert "notes.slow" in last.error
    assert titles(log) == ["one", "two"]


async def test_rows_end_after_two_weeks_and_hold_so_many_calls(
    tmp_path: Path, proxy: FaultyProxy, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "CALLS", 2)
    async with pair(tmp_path, proxy) as (one, other):
        many = await run_program(one, ONE * 5)
        assert many.status == "success"
        with raises_code("invalid_request", match="it sent more than the 2 calls"):
            await run_program(other, ONE, retry_of=many.run_id)
        assert len((await run_program(one, ONE * 5, retry_of=many.run_id)).replayed) == 1
        runs = schema.runs
        store_at(tmp_path).execute(runs.update().values(began=runs.c.began - 13 * 86_400))
        few = await run_program(one, ONE)
        store_at(tmp_path).execute(runs.update().values(began=runs.c.began - 2 * 86_400))
        await until(lambda: row_of(tmp_path, many.run_id) is None)
        assert row_of(tmp_path, few.run_id) is not None
