"""Servers that ask, through the MCP surface and the official client, in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageResult,
    ElicitRequest,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)
from pydantic import TypeAdapter

from bridge.runs import Engine
from bridge.server.app import build_server
from tests.asker_rig import asker, call, text_of, value_of
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.fakes.backend import FakeBackend
from tests.server.pipe_rig import piped, request
from tests.waiting import until

_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any])

Elicit = ElicitationFnT


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(scope="module")
async def engine(
    backend: FakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    settings = settings_in(tmp_path_factory.mktemp("home"))
    async with engine_on(backend, settings, finder=ListFinder(asker())) as opened:
        yield opened
    assert backend.live == set()


@pytest.fixture
async def undisturbed(engine: Engine, backend: FakeBackend) -> AsyncIterator[None]:
    assert backend.live == set()
    yield
    await until(lambda: not backend.live)
    assert (engine.suspended.waiting, engine.suspended.live) == (0, 0)


pytestmark = pytest.mark.usefixtures("undisturbed")


@pytest.fixture
def server(engine: Engine) -> Server[Any]:
    return build_server(engine, principal="test")


def answer_with(action: Any, **content: Any) -> Elicit:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action=action, content=content or None)

    return elicit


async def test_the_user_accepts_declines_or_cancels(server: Server[Any], era: str) -> None:
    outcomes: dict[Any, dict[str, str]] = {"accept": {"name": "Ann"}, "decline": {}, "cancel": {}}
    for action, content in outcomes.items():
        callback = answer_with(action, **content)
        async with Client(server, mode=era, elicitation_callback=callback) as client:
            filled = f" {content}" if content else ""
            assert value_of(await call(client, "await mcp_asker.name()")) == f"{action}{filled}"
    async with Client(server, mode=era, elicitation_callback=answer_with("accept")) as client:
        assert value_of(await call(client, "await mcp_asker.visit()")) == "accept"


async def test_the_users_model_answers(server: Server[Any], era: str) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        content = TextContent(text=f"four, of {params.messages[0].content.text}")
        return CreateMessageResult(role="assistant", content=content, model="m")

    async with Client(server, mode=era, sampling_callback=sample) as client:
        said = value_of(await call(client, "await mcp_asker.think()"))
        assert said == "it says four, of What is two and two?"


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ("name", "offers no way to ask its user (elicitation). Wanted: [asker] What is your name"),
        ("think", "offers no way to sample its model"),
    ],
)
async def test_a_client_that_cannot_be_asked_is_not(
    server: Server[Any], era: str, tool: str, complaint: str
) -> None:
    async with Client(server, mode=era) as client:
        result = await call(client, f"await mcp_asker.{tool}()")
        assert result.is_error is True
        assert complaint in text_of(result)


async def _raw(client: Client, **params: Any) -> CallToolResult | InputRequiredResult:
    request = CallToolRequest(
        params=CallToolRequestParams(
            name="run_python", arguments={"code": "await mcp_asker.name()"}, **params
        )
    )
    raw = await client.session.send_request(request, _ANY)
    if raw.get("resultType") == "input_required":
        return InputRequiredResult.model_validate(raw, by_name=False)
    return CallToolResult.model_validate(raw, by_name=False)


@pytest.fixture
async def modern(server: Server[Any]) -> AsyncIterator[Client]:
    callback = answer_with("accept", name="Ann")
    async with Client(server, mode="2026-07-28", elicitation_callback=callback) as client:
        yield client


async def test_a_run_that_asks_is_answered_with_the_question(
    modern: Client, engine: Engine, backend: FakeBackend
) -> None:
    with anyio.fail_after(60):
        first = await _raw(modern)
        assert isinstance(first, InputRequiredResult)
        [(key, question)] = (first.input_requests or {}).items()
        assert isinstance(question, ElicitRequest)
        assert question.params.message.startswith("[asker] What is your name?\n(The server asker")
        assert (engine.suspended.waiting, len(backend.live)) == (1, 1)
        answers = {key: ElicitResult(action="decline")}
        last = await _raw(modern, input_responses=answers, request_state=first.request_state)
        assert isinstance(last, CallToolResult)
        assert value_of(last) == "decline"
        # The state is used up.
        again = await _raw(modern, input_responses=answers, request_state=first.request_state)
        assert isinstance(again, CallToolResult)
        assert again.is_error
        assert "No run waits for this requestState" in text_of(again)
    await until(lambda: not backend.live)


async def test_a_client_that_shows_forms_alone_is_sent_to_no_address(engine: Engine) -> None:
    code = "await mcp_asker.visit()"
    run = request(1, "tools/call", {"name": "run_python", "arguments": {"code": code}})
    async with piped(engine, "2025-11-25", principal="test", elicitation={}) as peer:
        said = (await peer.answer(run))["result"]["content"][0]["text"]
    assert "offers no way to send its user to a URL (elicitation)" in said
