"""Servers that ask, through the MCP surface and the official client, in both eras."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
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
    LoggingMessageNotificationParams,
    TextContent,
)
from pydantic import TypeAdapter

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.asker_rig import asker, call, text_of, value_of
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.fakes.backend import FakeBackend
from tests.server.pipe_rig import piped, request
from tests.waiting import until

_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any])

ERAS = ["legacy", "2026-07-28"]

Elicit = ElicitationFnT


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    """The backend under the engine."""
    return FakeBackend()


@pytest.fixture(scope="module")
async def engine(
    backend: FakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    """One engine for all tests, with the server that asks, which takes a second to start."""

    settings = settings_in(tmp_path_factory.mktemp("home"))
    async with engine_on(backend, settings, finder=ListFinder(asker())) as opened:
        yield opened
    assert backend.live == set()


@pytest.fixture
async def undisturbed(engine: Engine, backend: FakeBackend) -> AsyncIterator[None]:
    """See that no test leaves a run to the next."""
    assert backend.live == set()
    yield
    await until(lambda: not backend.live)
    assert (engine.suspended.waiting, engine.suspended.live) == (0, 0)


pytestmark = pytest.mark.usefixtures("undisturbed")


@pytest.fixture
def server(engine: Engine) -> Server[Any]:
    """The bridge, for one client."""
    return build_server(engine, principal="test")


def answering(action: Any, **content: Any) -> Elicit:
    """Return a callback that always answers so."""

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action=action, content=content or None)

    return elicit


@pytest.mark.parametrize("era", ERAS)
async def test_the_user_accepts_declines_or_cancels(server: Server[Any], era: str) -> None:
    outcomes: dict[Any, dict[str, str]] = {"accept": {"name": "Ann"}, "decline": {}, "cancel": {}}
    for action, content in outcomes.items():
        callback = answering(action, **content)
        async with Client(server, mode=era, elicitation_callback=callback) as client:
            filled = f" {content}" if content else ""
            assert value_of(await call(client, "await mcp_asker.name()")) == f"{action}{filled}"
    async with Client(server, mode=era, elicitation_callback=answering("accept")) as client:
        assert value_of(await call(client, "await mcp_asker.visit()")) == "accept"


@pytest.mark.parametrize("era", ERAS)
async def test_the_users_model_answers(server: Server[Any], era: str) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        content = TextContent(text=f"four, of {params.messages[0].content.text}")
        return CreateMessageResult(role="assistant", content=content, model="m")

    async with Client(server, mode=era, sampling_callback=sample) as client:
        said = value_of(await call(client, "await mcp_asker.think()"))
        assert said == "it says four, of What is two and two?"


@pytest.mark.parametrize("era", ERAS)
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


@pytest.mark.parametrize("era", ERAS)
async def test_several_questions_of_a_program_are_all_answered(
    server: Server[Any], era: str
) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message.partition("\n")[0])
        return ElicitResult(action="accept", content={"name": asked[-1][-1]})

    code = (
        "import asyncio\n"
        "ask = lambda n: mcp_asker.name(message=f'number {n}')\n"
        "first = await asyncio.gather(*map(ask, range(3)))\n"
        "[*first, await ask(3)]"
    )
    async with Client(server, mode=era, elicitation_callback=elicit) as client:
        answers = value_of(await call(client, code))
    assert answers == [f"accept {{'name': '{n}'}}" for n in range(4)]
    assert sorted(asked) == [f"[asker] number {n}" for n in range(4)]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cancels_while_it_is_asked_ends_the_run(
    server: Server[Any], engine: Engine, backend: FakeBackend, era: str
) -> None:
    """With its sandbox. In the newer era it is between two requests then, and just never returns:
    what ends the run is tested with `SuspendedRuns`.
    """
    reached = anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(60):
        async with Client(server, mode=era, elicitation_callback=elicit) as client:
            async with anyio.create_task_group() as tasks:
                arguments = {"code": "await mcp_asker.name()"}
                tasks.start_soon(client.call_tool, "run_python", arguments)
                await reached.wait()
                tasks.cancel_scope.cancel()
            if era == "legacy":
                await until(lambda: not backend.live)
            else:
                assert len(backend.live) == 1
                await _give_up(engine, backend)


async def _give_up(engine: Engine, backend: FakeBackend) -> None:
    """Let the time be over that a run waits for its client to come back."""
    for run in engine.suspended.runs():
        run.scope.deadline = anyio.current_time()
    await until(lambda: not backend.live)


@pytest.mark.parametrize("era", ERAS)
async def test_messages_of_servers_reach_the_client(server: Server[Any], era: str) -> None:
    said: list[LoggingMessageNotificationParams] = []

    async def hear(params: LoggingMessageNotificationParams) -> None:
        said.append(params)

    with anyio.fail_after(60):
        async with Client(server, mode=era, logging_callback=hear, log_level="error") as client:
            if era == "legacy":
                await _set_level(client)
            # What comes just after a call's answer still has its run to come through.
            await call(client, "await mcp_asker.count()\nimport time\ntime.sleep(0.3)")
            await until(lambda: bool(said))
        async with Client(server, mode="2026-07-28", logging_callback=hear) as client:
            await call(client, "await mcp_asker.count()")
    assert [(params.level, params.logger) for params in said] == [("error", "asker/the-asker")]


async def _set_level(client: Client) -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        await client.set_logging_level("error")


# --- the newer era by hand -----------------------------------------------------------------------


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
    """A client of the newer era that can be asked."""
    callback = answering("accept", name="Ann")
    async with Client(server, mode="2026-07-28", elicitation_callback=callback) as client:
        yield client


async def test_a_run_that_asks_is_answered_with_the_question(
    modern: Client, engine: Engine, backend: FakeBackend
) -> None:
    """It stays alive, and goes on when the call is made again with the answer."""
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


async def test_a_state_belongs_to_its_call_and_its_client(modern: Client, engine: Engine) -> None:
    with anyio.fail_after(60):
        first = await _raw(modern)
        assert isinstance(first, InputRequiredResult)
        state = first.request_state
        foreign = build_server(engine, principal="somebody else")
        async with Client(foreign, mode="2026-07-28") as other:
            refused = await _raw(other, request_state=state)
            assert "No run waits" in text_of(refused)
        other_code = {"code": "1", "timeout": 5}
        params = CallToolRequestParams(name="run_python", arguments=other_code, request_state=state)
        raw = await modern.session.send_request(CallToolRequest(params=params), _ANY)
        assert "belongs to a call with other arguments" in raw["content"][0]["text"]
        # An answer that is left out counts as cancelled.
        last = await _raw(modern, request_state=state)
        assert isinstance(last, CallToolResult)
        assert value_of(last) == "cancel"


async def test_a_client_that_never_comes_back_leaves_nothing(
    modern: Client, engine: Engine, backend: FakeBackend
) -> None:
    with anyio.fail_after(60):
        first = await _raw(modern)
        assert isinstance(first, InputRequiredResult)
        await _give_up(engine, backend)
        assert (engine.suspended.waiting, engine.suspended.live) == (0, 0)
        late = await _raw(modern, request_state=first.request_state)
        assert "given up" in text_of(late)


# --- the reference server ------------------------------------------------------------------------

EVERYTHING = (
    Path(__file__).parents[1] / "node/node_modules/@modelcontextprotocol/server-everything"
) / "dist/index.js"

QUESTIONS = """
[
    await mcp_everything.trigger_elicitation_request(),
    await mcp_everything.trigger_sampling_request(prompt="two and two?"),
    await mcp_everything.get_roots_list(),
    await mcp_everything.trigger_long_running_operation(duration=1, steps=2),
]
"""


@pytest.mark.node
@pytest.mark.parametrize("era", ERAS)
async def test_the_reference_server_asks_in_all_its_ways(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
    """It offers these tools only to clients that say they can be asked; roots are configured."""
    assert EVERYTHING.exists(), "`make test` installs it"
    node = Path(sys.executable).parent / "node"
    spec = replace(
        asker(),
        name="everything",
        command=str(node),
        args=(str(EVERYTHING), "stdio"),
        env={"PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"},
    )

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        content = TextContent(text="four")
        return CreateMessageResult(role="assistant", content=content, model="m")

    callback = answering("accept", name="Ann", check=True)
    rooted = replace(settings, roots=(tmp_path,))
    async with engine_on(backend, rooted, finder=ListFinder(spec)) as engine:
        bridge = build_server(engine, principal="test")
        async with Client(
            bridge, mode=era, elicitation_callback=callback, sampling_callback=sample
        ) as client:
            answers = str(value_of(await call(client, QUESTIONS)))
    for expected in ("Ann", "four", tmp_path.as_uri(), "operation completed"):
        assert expected in answers


async def test_a_client_that_shows_forms_alone_is_sent_to_no_address(engine: Engine) -> None:
    code = "await mcp_asker.visit()"
    run = request(1, "tools/call", {"name": "run_python", "arguments": {"code": code}})
    async with piped(engine, "2025-11-25", principal="test", elicitation={}) as peer:
        said = (await peer.answer(run))["result"]["content"][0]["text"]
    assert "offers no way to send its user to a URL (elicitation)" in said
