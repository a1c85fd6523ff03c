"""Servers that ask, while the bridge serves several clients over HTTP."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.types import ElicitResult

from bridge.runs import Engine
from bridge.server import clients
from tests.asker_rig import asker, call, text_of
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.server.web_rig import web
from tests.waiting import until


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(asker())


async def test_over_http_each_client_is_asked_its_own_questions(engine: Engine, era: str) -> None:
    asked: dict[str, list[str]] = {"me": [], "you": []}
    answers: dict[str, list[str]] = {"me": [], "you": []}

    def callback(who: str) -> ElicitationFnT:
        async def elicit(context: Any, params: Any) -> ElicitResult:
            asked[who].append(params.message)
            return ElicitResult(action="accept", content={"name": who})

        return elicit

    async def work(url: str, who: str) -> None:
        async with Client(url, mode=era, elicitation_callback=callback(who)) as client:
            for number in range(4):
                code = f"await mcp_asker.name(message='{who} {number}')"
                answers[who].append(text_of(await call(client, code)))

    with anyio.fail_after(90):
        async with web(engine) as url, anyio.create_task_group() as tasks:
            tasks.start_soon(work, url, "me")
            tasks.start_soon(work, url, "you")
    for who, texts in answers.items():
        for text in texts:
            assert f"'name': '{who}'" in text or "No user can be asked" in text, text
        assert all(f"[asker] {who} " in message for message in asked[who])


async def test_over_http_a_client_that_goes_while_it_is_asked(
    engine: Engine, backend: FakeBackend, era: str
) -> None:
    reached = anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(60))
        url = await stack.enter_async_context(web(engine))
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                async with Client(url, mode=era, elicitation_callback=elicit) as client:
                    await client.call_tool("run_python", {"code": "await mcp_asker.name()"})

            tasks.start_soon(use)
            await reached.wait()
            tasks.cancel_scope.cancel()
        if era != "legacy":
            for run in engine.suspended.runs():
                run.scope.deadline = anyio.current_time()
        await until(lambda: not backend.live)


async def test_over_http_a_client_that_answers_nothing_is_waited_for_minutes_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clients.WAIT_SECONDS <= 300
    monkeypatch.setattr(clients, "WAIT_SECONDS", 0.1)
    asked = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await anyio.sleep_forever()
        raise AssertionError

    code = """
for _ in range(2):
    try:
        print(await mcp_asker.name())
    except MCPError as error:
        print(error)
"""
    with anyio.fail_after(60):
        async with (
            web(engine) as url,
            Client(url, mode="legacy", elicitation_callback=elicit) as client,
        ):
            said = text_of(await call(client, code))
    assert said.count("This run has waited 0.1 s for answers of its client over HTTP.") == 2
    assert len(asked) == 1


async def test_over_http_a_run_that_a_drain_ended_is_told_to_its_client_that_comes_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained = anyio.Event()

    async def drain() -> None:
        await engine.running_runs.drain(0, lambda: engine.suspended.live > 0)
        drained.set()

    async with anyio.create_task_group() as tasks:

        async def elicit(context: Any, params: Any) -> ElicitResult:
            tasks.start_soon(drain)
            await until(lambda: engine.running_runs.count == 0)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert not drained.is_set()
            return ElicitResult(action="accept", content={"name": "me"})

        with anyio.fail_after(60):
            async with (
                web(engine) as url,
                Client(url, mode="2026-07-28", elicitation_callback=elicit) as client,
            ):
                told = text_of(await call(client, "await mcp_asker.name()"))
    assert "The run was ended in the middle" in told
    assert drained.is_set()
