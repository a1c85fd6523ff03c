"""Two bridges on one PostgreSQL: what one knows of a run of the other, and does not make again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from mcp import Client

from bridge.cli.records import show_run
from bridge.errors import InvalidRequestError
from bridge.event_loop import background_task
from bridge.gate import fates
from bridge.model import RunResult
from bridge.runs import Engine
from bridge.server.admission import Replica
from bridge.server.app import build_server
from bridge.store import ServerUrl, schema
from tests.asker_rig import text_of
from tests.engine_rig import ListFinder, engine_on, run_program, settings_in
from tests.fakes.backend import FakeBackend
from tests.faulty_proxy import FaultyProxy
from tests.plans.plan_rig import applied, planned
from tests.postgresql import Server, address, store_at
from tests.raised import raises_code
from tests.recorder_rig import recorded, recorder, tools_recorded
from tests.runs.test_retry import POLICY
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("postgresql")

UNPINNED = f"[policy]\npin = false\n{POLICY}"  # Pins need the database.

READ = "await mcp_notes.read_note(topic='a')\n"
ONE, TWO = (f"await mcp_notes.create(title='{number}')\n" for number in (1, 2))
SLOW, RELEASE = "await mcp_notes.slow()\n", "await mcp_notes.release()\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "ALIVE", 1.0)
    monkeypatch.setattr("bridge.store.heartbeat.BEAT_SECONDS", 0.1)


@dataclass(frozen=True)
class Pair:
    """Bridge a, which reaches the database through the proxy, and bridge b."""

    home: Path
    a: Engine
    b: Engine
    proxy: FaultyProxy

    def made(self) -> list[str]:
        """Return the titles of the items that either bridge has created."""
        return [given["title"] for tool, given in recorded(self.home / "log") if tool == "create"]

    async def slow(self) -> None:
        await until(lambda: "slow" in tools_recorded(self.home / "log"))

    async def cut(self) -> None:
        self.proxy.fault = "refuse"
        await until(lambda: bool(self.a.heartbeat.silence))

    async def mended(self) -> None:
        self.proxy.fault = ""
        await until(lambda: not self.a.heartbeat.silence)

    async def made_without_database(self, code: str) -> RunResult:
        """Run a program in bridge a; a connection that has just broken may have had its row."""
        while (result := await run_program(self.a, code)).status != "success":
            assert "the shared store cannot record it" in result.error
        return result

    def known(self) -> set[str]:
        return {row.id for row in store_at(self.home).query(schema.runs.select())}


def bridge(home: Path, name: str, url: ServerUrl) -> AbstractAsyncContextManager[Engine]:
    (home / name).mkdir(exist_ok=True)
    (config := home / "config.toml").write_text(UNPINNED)
    finder = ListFinder(recorder("notes", home / "log", notes={"a": "text"}))
    settings = replace(settings_in(home / name), store=url, replica=name)
    return engine_on(FakeBackend(), settings, config=config, finder=finder)


@pytest.fixture
async def pair(tmp_path: Path, proxy: FaultyProxy) -> AsyncIterator[Pair]:
    async with (
        bridge(tmp_path, "a", address(tmp_path, port=proxy.port)) as one,
        bridge(tmp_path, "b", address(tmp_path)) as other,
    ):
        yield Pair(tmp_path, one, other, proxy)
        proxy.fault = ""


async def test_a_retry_in_another_bridge_repeats_no_call_of_a_bridge_that_is_gone(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    seen: list[str | None] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with (
        Client(build_server(pair.a), mode="legacy") as near,
        Client(build_server(pair.b), mode="legacy") as far,
        anyio.create_task_group() as tasks,
    ):

        async def cut_off() -> None:
            code = {"code": READ + ONE + SLOW + TWO}
            result = await near.call_tool("run_python", code, progress_callback=progress)
            told.append(text_of(result))

        tasks.start_soon(cut_off)
        await pair.slow()
        # The first word of a run to a client is its id.
        run_id = str(seen[0]).removeprefix("This is run ").rstrip(".")
        with raises_code("invalid_request", match="cannot be retried here yet: bridge 'a' was"):
            await run_program(pair.b, READ, retry_of=run_id)
        await pair.cut()
        waits = ""
        while "the bridge 'a' was not heard of for" not in waits:
            waits = text_of(await far.call_tool("run_python", {"retry_of": run_id}))
        first = await run_program(pair.b, READ + ONE, retry_of=run_id)
        assert "did happen, and this bridge does not have its result" in first.error
        assert "the bridge 'a' was not heard of for" in first.error
        for text in (waits, first.error):
            sent = "notes.create was sent and answered; notes.slow was sent without an answer"
            assert sent in text
        second = await run_program(pair.b, SLOW, retry_of=run_id)
        assert "may or may not have happened" in second.error
        assert tools_recorded(pair.home / "log") == ["read_note", "create", "slow", "read_note"]
        assert (await run_program(pair.b, TWO, retry_of=run_id)).status == "success"
        await show_run(replace(pair.b.settings, state_dir=pair.home / "c"), run_id[:12])
        assert "bridge 'b' has ended it" in capsys.readouterr().out

        # Bridge a was alive. It makes no call that the retry may have made.
        await pair.mended()
        await run_program(pair.a, RELEASE)
        await until(lambda: bool(told))
    assert "another retry of the same run" in told[0]
    assert pair.made() == ["1", "2"]


async def test_a_bridge_that_is_started_again_knows_the_fate_of_its_last_process_s_run(
    pair: Pair,
) -> None:
    async with anyio.create_task_group() as tasks:
        run_id = "0123456789abcdef" * 2
        tasks.start_soon(partial(run_program, pair.a, ONE + SLOW, run_id=run_id))
        await pair.slow()
        await pair.cut()
        async with bridge(pair.home, "a", address(pair.home)) as again:
            said = ""
            while "notes.slow was sent without an answer" not in said:
                # Until then the run may still go on.
                with suppress(InvalidRequestError):
                    said = (await run_program(again, ONE, retry_of=run_id)).error
            assert "the bridge 'a' was not heard of for" in said
        tasks.cancel_scope.cancel()
    assert pair.made() == ["1"]


async def test_bridges_continue_one_chain_of_retries(pair: Pair) -> None:
    first = await run_program(pair.a, ONE + "1 / 0")
    slip = await run_program(pair.a, ONE + "1 / 0", retry_of=first.run_id)
    second = await run_program(pair.b, TWO, retry_of=slip.run_id)
    assert second.status == "success"
    third = await run_program(pair.a, ONE + TWO, retry_of=first.run_id)
    assert f"another retry of the same run, {second.run_id}" in third.error
    # The bridge that made a call has its result; the other knows that it was made.
    for has, lacks, run, code in ((pair.a, pair.b, first, ONE), (pair.b, pair.a, second, TWO)):
        assert (await run_program(has, code, retry_of=run.run_id)).replayed
        last = await run_program(lacks, code, retry_of=run.run_id)
        assert "notes.create was sent and answered" in last.error
    assert pair.made() == ["1", "2"]


async def test_a_run_has_a_complete_row_or_none(pair: Pair) -> None:
    await pair.cut()
    first = await pair.made_without_database(ONE)
    with raises_code("unknown_run", match="There is no journal"):
        await run_program(pair.b, ONE, retry_of=first.run_id)
    await pair.mended()
    await run_program(pair.a, RELEASE)
    again = await run_program(pair.b, ONE, retry_of=first.run_id)
    assert "bridge 'a' has ended it; notes.create was sent and answered" in again.error
    results: list[RunResult] = []

    async def refused() -> None:
        results.append(await run_program(pair.a, SLOW + TWO))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refused)
        await pair.slow()
        await pair.cut()
        await pair.made_without_database(RELEASE)
    assert "notes.create is not made: the shared store cannot record it" in results[0].error
    assert pair.made() == ["1"]


async def test_a_run_without_changes_costs_no_statement_and_one_with_a_change_two(
    tmp_path: Path, postgresql: Server
) -> None:
    def statements() -> int:
        return sum("INSERT INTO runs" in line for line in postgresql.log)

    logged = ServerUrl(f"{address(tmp_path).text}%20-clog_statement%3Dall")
    async with bridge(tmp_path, "a", logged) as engine:
        for code, most in (("1", 0), (READ, 0), (ONE, 2), (READ + ONE + TWO + READ, 5)):
            await run_program(engine, code)
            await until(lambda most=most: statements() >= most)  # type: ignore[misc]
            assert statements() == most, code


async def test_a_plan_that_a_bridge_which_is_gone_applied_in_part_says_so(pair: Pair) -> None:
    _, plan = await planned(pair.a, ONE + SLOW + TWO)
    said = ""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(applied, pair.a, plan)
        await pair.slow()
        await pair.cut()
        while "the bridge 'a' was not heard of for" not in said:
            with raises_code("unknown_plan", match="took it at") as refused:
                await applied(pair.b, plan)
            said = str(refused.value)
        tasks.cancel_scope.cancel()
    assert "notes.create was sent and answered; notes.slow was sent without an answer" in said
    run_id = said.rpartition('retry_of="')[2][:32]
    last = await run_program(pair.b, TWO + SLOW, retry_of=run_id)
    assert "notes.slow" in last.error
    assert pair.made() == ["1", "2"]


async def test_rows_have_so_many_calls_and_go_after_two_weeks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "CALLS", 2)
    many = await run_program(pair.a, ONE * 5)
    with raises_code("invalid_request", match="it sent more than the 2 calls"):
        await run_program(pair.b, ONE, retry_of=many.run_id)
    for run_id in ("later" * 6, ""):
        began = schema.runs.c.began - 8 * 86_400
        store_at(pair.home).execute(schema.runs.update().values(began=began))
        await run_program(pair.a, ONE, run_id=run_id)
    await until(lambda: many.run_id not in pair.known())
    assert "later" * 6 in pair.known()


async def test_a_bridge_without_the_database_stays_ready_and_serves_what_needs_none(
    pair: Pair,
) -> None:
    replica = Replica(pair.a)
    async with background_task(replica.tend):
        await until(lambda: not replica.missing)
        await pair.cut()
        assert (replica.missing, replica.impaired) == ([], ["store"])
        result = await run_program(pair.a, f"open('out/a', 'w').close()\n{READ}1")
        assert (result.status, result.result, result.artifacts) == ("success", 1, ())
        assert "the database server cannot be reached" in result.missing[0].why
        with raises_code("store_unavailable", match="Nothing was run"):
            await run_program(pair.a, "1", session="work", owner="me")
        await pair.mended()
        assert replica.impaired == []
    assert (await run_program(pair.a, "1", session="work", owner="me")).status == "success"


@pytest.mark.parametrize("problem", ["clock", "schema"])
async def test_a_bridge_with_a_wrong_clock_or_an_old_schema_begins_no_runs_and_is_not_ready(
    tmp_path: Path, postgresql: Server, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridge(tmp_path, "a", address(tmp_path)) as engine:
        replica, real = Replica(engine), time.time
        await run_program(engine, "1")
        if problem == "clock":
            monkeypatch.setattr(time, "time", lambda: real() + 90)
        else:
            later = schema.migrations.insert().values(number=len(schema.MIGRATIONS) + 1)
            store_at(tmp_path).execute(later)
        await until(lambda: problem in replica.missing)
        assert problem != "clock" or "+90 s off" in engine.heartbeat.problems["clock"]
        with raises_code("draining", match="begins no runs: .* Nothing was run") as refused:
            await run_program(engine, "1")
        assert "remove" not in str(refused.value)
        assert "another bridge" in refused.value.remedy


async def test_an_idle_bridge_asks_the_database_once_for_each_beat(
    tmp_path: Path, postgresql: Server
) -> None:
    logged = ServerUrl(f"{address(tmp_path).text}%20-clog_statement%3Dall")
    async with bridge(tmp_path, "a", logged) as engine:
        await run_program(engine, READ + ONE)
        async with background_task(Replica(engine).tend):
            await until(lambda: any("INSERT INTO bridges" in line for line in postgresql.log))
            postgresql.log.clear()
            beats = list[str]()
            while len(beats) < 8:
                await anyio.sleep(0.1)
                beats = [line for line in postgresql.log if "INSERT INTO bridges" in line]
            begins = [line for line in postgresql.log if "statement: BEGIN" in line]
            asked = [line for line in postgresql.log if "execute <unnamed>" in line]
    assert len(begins) - len(beats) in (0, 1)
    assert all(" bridges" in line or " runs" in line for line in asked)
