"""A person asked about calls, through the MCP surface and the official client, in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult, ElicitResult

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.asker_rig import call, text_of, value_of
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.record import record_of
from tests.recorder_rig import recorder, tools_recorded
from tests.server.web_rig import web

POLICY = """\
[policy]
[policy.servers.desk]
trust = true
pin = "full"

# Redescribing is how the tests change a tool.
[[policy.rules]]
name = "for the tests"
tool = "redescribe"
action = "allow"

[[policy.rules]]
name = "sending"
tool = "send"
action = "ask"
reason = "it leaves the house"
"""

WRITE = "await mcp_desk.write_note(topic='t', text='x')"


class Person:
    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.offered: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        self.offered = params.requested_schema["properties"]["decision"]["enum"]
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer in ("decline", "cancel"):
            return ElicitResult(action="decline" if answer == "decline" else "cancel")
        return ElicitResult(action="accept", content={"decision": answer})

    def count(self) -> int:
        found = len(self.asked)
        self.asked.clear()
        return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.log"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(POLICY)
    return path


Opening = Callable[[], Any]


@pytest.fixture
def opening(settings: Settings, backend: FakeBackend, config: Path, log: Path) -> Opening:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Engine]:
        finder = ListFinder(recorder("desk", log))
        async with engine_on(backend, settings, config=config, finder=finder) as engine:
            yield engine

    return opened


@asynccontextmanager
async def _client(
    engine: Engine, era: str, person: Person | None, principal: str = "me"
) -> AsyncIterator[Client]:
    server = build_server(engine, principal=principal)
    async with Client(server, mode=era, elicitation_callback=person) as client:
        yield client


def _error(result: CallToolResult) -> str:
    assert result.is_error is True
    return text_of(result)


async def test_an_answer_holds_for_a_call_a_run_or_a_session(
    opening: Opening, log: Path, era: str
) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(opening())
        person = Person("call")
        me = await stack.enter_async_context(_client(engine, era, person))
        assert value_of(await call(me, f"{WRITE}\n{WRITE}"))["done"] == "write_note"
        assert person.asked[0].startswith('Allow desk.write_note(topic="t"')
        assert person.offered == ["call", "run", "session", "always", "no"]
        assert person.count() == 2
        # For the run: one question for all that it makes, and another in the next.
        person.answers = ["run"]
        for _ in range(2):
            assert value_of(await call(me, f"{WRITE}\n{WRITE}"))["done"] == "write_note"
            assert person.count() == 1
        # A user who says no is not asked again in this run, whatever the program asks with.
        before = len(tools_recorded(log))
        for answer in ("no", "decline", "cancel"):
            person.answers = [answer]
            pay = "await mcp_desk.transfer(to='x', amount=1, confirmed=True)"
            code = f"try:\n    {pay}\nexcept MCPError as error:\n    print(error)\n{pay}"
            refused = _error(await call(me, code))
            assert "The client was asked whether desk.transfer may be called" in refused
            assert ("gave no answer" if answer == "cancel" else "declined") in refused
            assert "is not asked again" in refused
            assert "confirmed=true" in person.asked[0]
            assert person.count() == 1
        assert len(tools_recorded(log)) == before
        # For the session: the next run is not asked, and another owner is.
        person.answers = ["session", "no"]
        for _ in range(2):
            assert value_of(await call(me, WRITE))["done"] == "write_note"
        assert person.count() == 1
        you = Person("no")
        other = await stack.enter_async_context(_client(engine, era, you, "you"))
        assert "declined" in _error(await call(other, WRITE))
        assert you.count() == 1


async def test_a_client_of_the_newer_era_is_not_asked_until_it_gives_up(
    opening: Opening, log: Path
) -> None:
    person = Person("call")
    async with opening() as engine, _client(engine, "2026-07-28", person) as client:
        code = f"for _ in range(10):\n    {WRITE}\nprint('so far')\n{WRITE}"
        refused = _error(await call(client, code))
    assert "so far" in refused
    assert "was asked 10 times in this run" in refused
    assert person.count() == len(tools_recorded(log)) == 10


@pytest.mark.guarantee("identified-approvers")
async def test_over_http_without_authentication_no_answer_is_an_approval(
    opening: Opening, log: Path, era: str
) -> None:
    person = Person("call")
    plan = f"await mcp_desk.redescribe(tool='send', description='d')\n{WRITE}"
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(web(await stack.enter_async_context(opening())))
        client = await stack.enter_async_context(Client(url, mode=era, elicitation_callback=person))
        refused = _error(await call(client, WRITE))
        assert "desk.write_note needs a person's approval (default for writes). No user" in refused
        assert "`serve --http` does not authenticate its callers" in refused
        assert "Connect over stdio" in refused
        assert '[[policy.rules]]\nname = "allow desk.write_note"' in refused
        made = await client.call_tool("run_python", {"code": plan, "mode": "plan"})
        applied = [await _apply_plan(client, code) for code in (plan, plan.partition("\n")[0])]
    assert "refuses that until the user's rules allow desk.write_note: no user can" in text_of(made)
    assert applied[0].is_error is True
    assert "The plan needs a person's approval, for desk.write_note" in text_of(applied[0])
    assert applied[1].is_error is False, text_of(applied[1])
    assert person.asked == []
    assert tools_recorded(log) == ["redescribe"]


async def _apply_plan(client: Client, code: str) -> CallToolResult:
    with anyio.fail_after(60):
        made = await client.call_tool("run_python", {"code": code, "mode": "plan"})
        found = record_of(made)["plan"]["id"]
        return await client.call_tool("run_python", {"apply": found})
