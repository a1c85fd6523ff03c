"""Clients that do not wait long for an answer, with programs that take longer."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import ElicitResult, EmptyResult, Implementation

from bridge.runs import Engine
from bridge.server import app as task_runs
from bridge.server import clients
from bridge.server.app import build_server
from bridge.server.clients import KnownClient, find_client
from bridge.server.content import RECORD_KEY
from bridge.upstream.client_features import on_behalf_of
from bridge.upstream.pool import Pool
from bridge.upstream.requests import TaskMethod, TaskRequest
from tests.asker_rig import asker, text_of
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.record import record_of
from tests.server.web_rig import web
from tests.upstream.rig import Rig
from tests.upstream.test_client_features import FakeCaller
from tests.waiting import until

NAME = "hasty"
TASKS = "import asyncio\nawait asyncio.sleep(0.3)\n"


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(asker())


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS", {NAME: KnownClient(seconds=0.05)})


def connect(server: Any, era: str, **more: Any) -> Client:
    return Client(server, mode=era, client_info=Implementation(name=NAME, version="1"), **more)


async def early_id(client: Client, code: str) -> str:
    result = await client.call_tool("run_python", {"code": code})
    assert (result.is_error, record_of(result)["status"]) == (False, "running")
    found = re.search(r'run_python\(retry_of="(\w+)"\)', text_of(result))
    assert found
    assert found[1] == record_of(result)["runId"]
    return found[1]


async def read(client: Client, number: str) -> Any:
    while True:
        result = await client.call_tool("run_python", {"retry_of": number, "code": ""})
        if record_of(result)["status"] != "running":
            return result
        assert f'retry_of="{number}"' in text_of(result)


async def test_a_client_that_would_give_up_gets_an_answer_and_its_model_the_whole_result(
    engine: Engine, era: str
) -> None:
    async with connect(build_server(engine, principal="me"), era) as client:
        number = await early_id(client, f"{TASKS}print(6 * 7)")
        result = await read(client, number)
        assert text_of(result) == "42\n"
        assert record_of(result)["runId"] == number
        failed = await read(client, await early_id(client, f"{TASKS}1 / 0"))
        assert failed.is_error
        assert "ZeroDivisionError" in text_of(failed)
        gone = await client.call_tool("run_python", {"retry_of": number})
        assert "Its result was read" in text_of(gone)
    assert (engine.suspended.live, engine.suspended.waiting) == (0, 0)


@pytest.mark.parametrize("remote", [False, True])
async def test_a_question_waits_until_the_model_is_back(
    engine: Engine, era: str, remote: bool
) -> None:
    asked = anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.set()
        return ElicitResult(action="accept", content={"name": "Ann"})

    code = f"{TASKS}print(await mcp_asker.name())"
    async with web(engine) as url:
        server: Any = url if remote else build_server(engine, principal="me")
        async with connect(server, era, elicitation_callback=elicit) as client:
            number = await early_id(client, code)
            assert not asked.is_set()
            assert "Ann" in text_of(await read(client, number))


@pytest.mark.parametrize(
    ("name", "configured", "environ", "seconds"),
    [
        ("codex-mcp-client", {}, {}, 270),
        ("codex-mcp-client", {"codex": 60.0}, {}, 54),
        ("codex-mcp-client", {"gemini": 60.0}, {"MCP_TOOL_TIMEOUT": "1000"}, 270),
        ("gemini-cli-mcp-client", {}, {}, 540),
        ("qwen-cli-mcp-client-code-bridge", {"qwen": 100.0}, {}, 90),
        ("claude-code", {}, {}, math.inf),
        ("claude-code", {}, {"MCP_TOOL_TIMEOUT": "60000"}, 54),
        ("claude-code", {"claude-code": 20.0}, {"MCP_TOOL_TIMEOUT": "60000"}, 18),
        ("claude-code", {}, {"MCP_TOOL_TIMEOUT": "0"}, math.inf),
        ("claude-code", {}, {"MCP_TOOL_TIMEOUT": "a minute"}, math.inf),
        ("claude-code", {}, {"MCP_TOOL_TIMEOUT": "²"}, math.inf),
        ("claude-code", {}, {"MCP_TOOL_TIMEOUT": "9" * 400}, math.inf),
        ("opencode", {}, {}, math.inf),
        ("", {}, {}, math.inf),
    ],
)
def test_a_call_is_answered_a_tenth_before_the_limit_that_holds_for_its_client(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    configured: Mapping[str, float],
    environ: Mapping[str, str],
    seconds: float,
) -> None:
    monkeypatch.undo()
    assert find_client(name).patience(configured, environ) == pytest.approx(seconds)


@pytest.fixture
async def pool(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pool]:
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
    monkeypatch.setattr("bridge.server.clients.CLIENTS", {"mcp-code-bridge": shows})
    arguments = {"code": "import time\ntime.sleep(0.5)\n1 / 0"}
    result = await pool.call_tool("server", "run_python", arguments, timeout=60)
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

    def note_status(*given: Any) -> dict[str, Any]:
        looks.set()
        return task_runs.task_status(*given)

    monkeypatch.setattr("bridge.server.app.task_status", note_status)
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
async def test_no_one_guesses_a_task_and_only_the_newer_era_has_them(
    engine: Engine, era: str, why: str
) -> None:
    methods: tuple[TaskMethod, ...] = ("tasks/get", "tasks/update", "tasks/cancel")
    async with Client(build_server(engine), mode=era) as client:
        for method in methods:
            asked = TaskRequest(method=method, params={"taskId": "guessed", "inputResponses": {}})
            with pytest.raises(MCPError, match=why):
                await client.session.send_request(asked, EmptyResult)
