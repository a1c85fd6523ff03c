"""Runs as tasks, for clients that declare them: the bridge's own sessions to servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import EmptyResult

from bridge.runs import Engine
from bridge.server import runs as task_runs
from bridge.server.app import build_server
from bridge.server.content import RECORD_KEY
from bridge.server.known_clients import KnownClient
from bridge.upstream.client_features import on_behalf_of
from bridge.upstream.pool import Pool
from bridge.upstream.task_calls import Method, TaskRequest
from tests.asker_rig import asker
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.server.web_rig import web
from tests.upstream.rig import Rig
from tests.upstream.test_client_features import FakeCaller
from tests.waiting import until


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(asker())


@pytest.fixture
async def pool(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pool]:
    """Sessions to a bridge at which every run that is not over at once becomes a task."""
    monkeypatch.setattr(task_runs, "TASK_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(task_runs, "POLL_SECONDS", 0.05)
    rig = Rig(tmp_path)
    async with web(engine) as url, rig.pool(rig.remote(url)) as pool:
        yield pool


async def run(pool: Pool, code: str, timeout: float = 60) -> str:
    result = await pool.call_tool("server", "run_python", {"code": code}, timeout=timeout)
    text: str = result["content"][0]["text"]
    return text


async def test_a_long_run_is_a_task_and_its_result_the_same(pool: Pool) -> None:
    assert (await run(pool, "import time\ntime.sleep(0.5)\nprint(6 * 7)")).startswith("42")
    assert "ZeroDivisionError" in await run(pool, "import time\ntime.sleep(0.5)\n1 / 0")


async def test_a_task_s_result_is_fit_to_its_client(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows = KnownClient(shows_failures=True)
    monkeypatch.setattr("bridge.server.known_clients._CLIENTS", {"mcp-code-bridge": shows})
    code = "import time\ntime.sleep(0.5)\n1 / 0"
    result = await pool.call_tool("server", "run_python", {"code": code}, timeout=60)
    assert result["isError"]
    assert RECORD_KEY not in result.get("_meta", {})


async def test_a_task_asks_its_client(pool: Pool) -> None:
    caller = FakeCaller("Ann")
    with on_behalf_of(caller):
        text = await run(pool, "import asyncio\nawait asyncio.sleep(0.5)\nawait mcp_asker.visit()")
    assert "accept" in text
    assert len(caller.asked) == 1


async def test_a_cancelled_task_leaves_nothing(
    pool: Pool, engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = anyio.Event()

    def noting(*given: Any) -> dict[str, Any]:
        looks.set()
        return task_runs.task_status(*given)

    monkeypatch.setattr("bridge.server.app.task_status", noting)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, pool, "import time\ntime.sleep(60)")
        await looks.wait()
        tasks.cancel_scope.cancel()
    await until(lambda: not backend.live and not engine.suspended.live)


async def test_only_clients_that_declare_tasks_get_one(pool: Pool, engine: Engine) -> None:
    async with web(engine) as url, Client(url, mode="2026-07-28") as client:
        code: dict[str, Any] = {"code": "import time\ntime.sleep(0.5)\nprint(6 * 7)"}
        result = await client.call_tool("run_python", code)
        assert result.content[0].text.startswith("42")  # type: ignore[union-attr]
    assert engine.suspended.waiting == 0


@pytest.mark.parametrize(
    ("era", "why"), [("2026-07-28", "no such task"), ("legacy", "Method not found")]
)
async def test_nobody_guesses_a_task_and_only_the_newer_era_has_them(
    engine: Engine, era: str, why: str
) -> None:
    methods: tuple[Method, ...] = ("tasks/get", "tasks/update", "tasks/cancel")
    async with Client(build_server(engine), mode=era) as client:
        for method in methods:
            asked = TaskRequest(method=method, params={"taskId": "guessed", "inputResponses": {}})
            with pytest.raises(MCPError, match=why):
                await client.session.send_request(asked, EmptyResult)
