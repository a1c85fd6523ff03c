"""Two bridges on one PostgreSQL: what one knows of a run of the other, and does not make again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from mcp import Client

from bridge.cli.records import show_run
from bridge.gate import fates
from bridge.model import RunResult
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from bridge.store import ServerUrl, schema
from tests.asker_rig import text_of
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

UNPINNED = f"[policy]\npin = false\n{POLICY}"  # Pins need the database.

READ, ONE, SLOW, TWO, RELEASE = (
    f"await mcp_notes.{call}\n"
    for call in (
        "read_note(topic='a')",
        "create(title='1')",
        "slow()",
        "create(title='2')",
        "release()",
    )
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "ALIVE_SECONDS", 1.0)
    monkeypatch.setattr("bridge.store.heartbeat.BEAT_SECONDS", 0.1)


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(postgresql.port) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def made(log: Path) -> list[str]:
    """Return the titles of the items that were created by whichever bridge."""
    return [given["title"] for tool, given in recorded(log) if tool == "create"]


def known_runs(directory: Path) -> set[str]:
    return {row.id for row in store_at(directory).query(schema.runs.select())}


def settings_of(directory: Path, name: str, url: ServerUrl | None) -> Settings:
    (directory / name).mkdir(exist_ok=True)
    return replace(settings_in(directory / name), store=url, replica=name)


@asynccontextmanager
async def bridges(directory: Path, **urls: ServerUrl | None) -> AsyncIterator[list[Engine]]:
    config = directory / "config.toml"
    config.write_text(UNPINNED)
    finder = ListFinder(recorder("notes", directory / "log", notes={"a": "text"}))
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                engine_on(
                    FakeBackend(),
                    settings_of(directory, name, url),
                    config=config,
                    finder=finder,
                )
            )
            for name, url in urls.items()
        ]


@pytest.fixture
async def pair(tmp_path: Path, proxy: FaultyProxy) -> AsyncIterator[list[Engine]]:
    """Bridge a, which reaches the database through the proxy, and bridge b."""
    direct = url_for(tmp_path)
    assert direct is not None
    login, query = f"{ROLE}:{quote(PASSWORD, safe='')}", direct.text.rpartition("&")[2]
    through = ServerUrl(f"postgresql://{login}@127.0.0.1:{proxy.port}/postgres?{query}")
    async with bridges(tmp_path, a=through, b=direct) as engines:
        yield engines
        proxy.fault = ""


async def test_a_retry_in_another_bridge_repeats_no_call_of_a_bridge_that_is_gone(
    tmp_path: Path,
    pair: list[Engine],
    proxy: FaultyProxy,
    log: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = pair
    told: list[str] = []
    seen: list[str | None] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with (
        Client(build_server(one), mode="legacy") as near,
        Client(build_server(other), mode="legacy") as far,
        anyio.create_task_group() as tasks,
    ):

        async def cut_off() -> None:
            code = {"code": READ + ONE + SLOW + TWO}
            result = await near.call_tool("run_python", code, progress_callback=progress)
            told.append(text_of(result))

        tasks.start_soon(cut_off)
        await until(lambda: "slow" in tools_recorded(log))
        # The first word of a run to a client is its id.
        run_id = str(seen[0]).removeprefix("This is run ").rstrip(".")
        with raises_code(
            "invalid_request", match="cannot be retried here yet: bridge 'a' was heard of"
        ):
            await run_program(other, READ, retry_of=run_id)
        proxy.fault = "refuse"
        waits = ""
        while "the bridge 'a' was not heard of for" not in waits:
            waits = text_of(await far.call_tool("run_python", {"retry_of": run_id}))
        first = await run_program(other, READ + ONE, retry_of=run_id)
        assert "notes.create" in first.error
        assert "did happen, and this bridge does not have its result" in first.error
        for text in (waits, first.error):
            assert "the bridge 'a' was not heard of for" in text
            assert "notes.create was sent and answered" in text
            assert "notes.slow was sent without an answer" in text
        second = await run_program(other, SLOW, retry_of=run_id)
        assert "may or may not have happened" in second.error
        assert tools_recorded(log) == ["read_note", "create", "slow", "read_note"]
        assert (await run_program(other, TWO, retry_of=run_id)).status == "success"
        await show_run(settings_of(tmp_path, "c", url_for(tmp_path)), run_id[:12])
        assert "bridge 'b' has ended it" in capsys.readouterr().out

        # Bridge a was alive. It makes no call that the retry may have made.
        proxy.fault = ""
        await until(lambda: not one.heartbeat.silence)
        await run_program(one, RELEASE)
        await until(lambda: bool(told))
    assert "another retry of the same run" in told[0]
    assert made(log) == ["1", "2"]


async def test_bridges_continue_one_chain_of_retries(pair: list[Engine], log: Path) -> None:
    one, other = pair
    first = await run_program(one, ONE + "1 / 0")
    slip = await run_program(one, ONE + "1 / 0", retry_of=first.run_id)
    second = await run_program(other, TWO, retry_of=slip.run_id)
    assert second.status == "success"
    third = await run_program(one, ONE + TWO, retry_of=first.run_id)
    assert f"another retry of the same run, {second.run_id}" in third.error
    # The bridge that made a call has its result; the other knows that it was made.
    for has, lacks, run_id, code in (
        (one, other, first.run_id, ONE),
        (other, one, second.run_id, TWO),
    ):
        assert (await run_program(has, code, retry_of=run_id)).replayed
        last = await run_program(lacks, code, retry_of=run_id)
        assert "notes.create was sent and answered" in last.error
    assert made(log) == ["1", "2"]


async def test_a_run_has_a_complete_row_or_none(
    tmp_path: Path, pair: list[Engine], proxy: FaultyProxy, log: Path
) -> None:
    one, other = pair
    proxy.fault = "refuse"
    await until(lambda: bool(one.heartbeat.silence))
    first = await run_program(one, ONE)
    assert first.status == "success"
    with raises_code("unknown_run", match="There is no journal"):
        await run_program(other, ONE, retry_of=first.run_id)
    proxy.fault = ""
    await until(lambda: not one.heartbeat.silence)
    await run_program(one, RELEASE)
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
        await run_program(one, RELEASE)
    assert "notes.create is not made: the shared store cannot record it" in results[0].error
    assert made(log) == ["1"]


async def test_a_run_without_changes_costs_no_statement_and_one_with_a_change_two(
    tmp_path: Path, postgresql: Server
) -> None:
    url = url_for(tmp_path)
    assert url is not None

    def statements() -> int:
        return sum("INSERT INTO runs" in line for line in postgresql.log)

    async with bridges(tmp_path, a=ServerUrl(f"{url.text}%20-clog_statement%3Dall")) as (engine,):
        for code, most in (("1", 0), (READ, 0), (ONE, 2), (READ + ONE + TWO + READ, 5)):
            await run_program(engine, code)
            await until(lambda most=most: statements() >= most)  # type: ignore[misc]
            assert statements() == most, code


async def test_a_plan_that_a_bridge_which_is_gone_applied_in_part_says_so(
    pair: list[Engine], proxy: FaultyProxy, log: Path
) -> None:
    one, other = pair
    _, plan = await planned(one, ONE + SLOW + TWO)
    said = ""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(applied, one, plan)
        await until(lambda: "slow" in tools_recorded(log))
        proxy.fault = "refuse"
        while "the bridge 'a' was not heard of for" not in said:
            with raises_code("unknown_plan", match="took it at") as refused:
                await applied(other, plan)
            said = str(refused.value)
        tasks.cancel_scope.cancel()
    assert "notes.create was sent and answered; notes.slow was sent without an answer" in said
    run_id = said.rpartition('retry_of="')[2][:32]
    last = await run_program(other, TWO + SLOW, retry_of=run_id)
    assert "notes.slow" in last.error
    assert made(log) == ["1", "2"]


async def test_rows_have_so_many_calls_and_go_after_two_weeks(
    tmp_path: Path, pair: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    monkeypatch.setattr(fates, "CALLS", 2)
    many = await run_program(one, ONE * 5)
    with raises_code("invalid_request", match="it sent more than the 2 calls"):
        await run_program(other, ONE, retry_of=many.run_id)
    for run_id in ("later" * 6, ""):
        began = schema.runs.c.began - 8 * 86_400
        store_at(tmp_path).execute(schema.runs.update().values(began=began))
        await run_program(one, ONE, run_id=run_id)
    await until(lambda: many.run_id not in known_runs(tmp_path))
    assert "later" * 6 in known_runs(tmp_path)
