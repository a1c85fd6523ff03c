"""Data that steers a program cannot make it send private data away: the flow rules stop that."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.cli.run import TERMINAL
from bridge.errors import RefusedError
from bridge.model import ApplyRequest, RunRequest, RunResult, ServerSpec, Source
from bridge.runs import Engine
from bridge.settings import load
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorded, recorder
from tests.runs.injections import (
    HONEST,
    OUTSIDE,
    POLICY,
    SECRET,
    SECRET_READ,
    SERVERS,
    STAYS_HERE,
    STOPPED,
    TWO_RUNS,
    UNSTOPPED,
)

pytestmark = pytest.mark.guarantee("kept-names", "learnt-names")

SENDING = frozenset({"send", "create", "transfer", "write_note", "no_such_tool", "delete_note"})


@dataclass(frozen=True)
class Arena:
    """An engine with a web, a mailbox, files and a chat, each of which writes down its calls."""

    engine: Engine
    logs: Path

    async def run(self, code: str, **more: Any) -> RunResult:
        with anyio.fail_after(60):
            return await self.engine.run(RunRequest(code=code, **more))

    def forget(self) -> None:
        for log in self.logs.iterdir():
            log.unlink()

    def sent(self, *servers: str) -> list[tuple[str, Any]]:
        """Return what was written or sent to some servers, and addresses beyond the first page."""
        calls = [call for server in servers for call in recorded(self.logs / server)]
        return [
            (tool, given)
            for tool, given in calls
            if tool in SENDING or (tool == "fetch" and "example.com" in given["url"])
        ]


@pytest.fixture
async def arena(tmp_path: Path) -> AsyncIterator[Arena]:
    async with opened(tmp_path) as found:
        yield found


@asynccontextmanager
async def opened(tmp_path: Path, policy: str = POLICY, *more: ServerSpec) -> AsyncIterator[Arena]:
    config, logs = tmp_path / "config.toml", tmp_path / "logs"
    config.write_text(policy)
    logs.mkdir()
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(config)}
    settings = load({"warm": "0", "state_dir": str(tmp_path / "state")}, environ)

    finder = ListFinder(
        *(recorder(name, logs / name, notes=notes) for name, notes in SERVERS.items()), *more
    )
    async with engine_on(FakeBackend(), settings, finder=finder) as engine:
        yield Arena(engine=engine, logs=logs)


async def _sent_by_each(arena: Arena, programs: Mapping[str, str]) -> dict[str, Any]:
    """Run programs; return what each has sent, with why calls of it were refused."""
    found = {}
    for name, code in programs.items():
        arena.forget()
        result = await arena.run(code)
        why = sorted({refused.why for refused in result.refused})
        found[name] = (arena.sent(*OUTSIDE, "crm"), why, result.error)
    return found


async def test_no_program_that_data_steers_gets_anything_out(arena: Arena) -> None:
    found = await _sent_by_each(arena, STOPPED)
    assert len(found) >= 14
    slipped = {name: sent for name, (sent, _, _) in found.items() if sent}
    assert slipped == {}
    # A tool that its server does not list is refused before anybody asks where data came from.
    unseen = {
        name: (why, error)
        for name, (_, why, error) in found.items()
        if not any("flow rule" in reason or "unlisted tool" in reason for reason in why)
    }
    assert unseen == {}


async def test_honest_programs_are_not_in_the_rules_way(arena: Arena) -> None:
    found = await _sent_by_each(arena, HONEST)
    assert len(found) >= 6
    stopped = {name: (why, error) for name, (_, why, error) in found.items() if why or error}
    assert stopped == {}


async def test_what_the_rules_do_not_know_of_is_not_stopped(arena: Arena) -> None:
    for name, code in UNSTOPPED.items():
        arena.forget()
        result = await arena.run(code)
        assert (result.status, result.refused) == ("success", ()), (name, result.error)
        assert arena.sent("pad", "chat"), name


async def test_sends_that_race_a_read_do_not_carry_what_it_returns(arena: Arena) -> None:
    result = await arena.run(
        "import asyncio\n"
        "async def read():\n"
        "    return (await mcp_mail.read_note(topic='inbox'))['text']\n"
        "async def send(text):\n"
        "    return await mcp_chat.send(to='m', text=text)\n"
        "async def both():\n"
        "    await send(await read())\n"
        "await asyncio.gather(send('early'), both(), both(), return_exceptions=True)\n"
    )
    assert result.status == "success", result.error
    assert {given["text"] for _, given in arena.sent("chat")} <= {"early"}


AFTER = """
[policy.defaults]
untrusted = "allow"

[[policy.flow]]
name = "{0} stays here"
after_servers = ["{0}"]
to_servers = ["chat"]
action = "deny"
"""


SLOW = """
import json, sys
log, waiting = open(sys.argv[1], "a"), {}
for line in sys.stdin:
    told = json.loads(line)
    method, params = told.get("method"), told.get("params") or {}
    if method == "initialize":
        answer = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "slow", "version": "1"}}
    elif method == "tools/list":
        names = ("send", "waiting")
        answer = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    elif params.get("name") == "waiting":
        answer = {"content": [{"type": "text", "text": str(len(waiting))}]}
    else:
        if method == "tools/call":
            waiting[told["id"]] = params["arguments"]["text"]
        if method == "notifications/cancelled":
            print("cancelled", waiting.pop(params["requestId"]), file=log, flush=True)
        if method == "ping":
            print(json.dumps({"jsonrpc": "2.0", "id": told["id"], "result": {}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": told["id"], "result": answer}), flush=True)
for text in waiting.values():
    print("continues", text, file=log, flush=True)
"""

CALLED_OFF = """
import asyncio, sys
sends = [asyncio.create_task(mcp_slow.send(text=str(bit))) for bit in range(4)]
while await mcp_slow.waiting() != "4":
    pass
await mcp_files.read_note(topic="doors")
sends[1].cancel()
sends[3].cancel()
await asyncio.wait(sends, return_when="FIRST_COMPLETED")
sys.exit()
"""


@pytest.mark.guarantee("cancelled-calls")
@pytest.mark.parametrize("watched", [False, True])
async def test_calls_that_are_called_off_carry_nothing_past_a_flow_rule(
    tmp_path: Path, *, watched: bool
) -> None:
    log, script = tmp_path / "slow", tmp_path / "slow.py"
    log.write_text("")
    script.write_text(SLOW)
    slow = replace(recorder("slow", log), args=(str(script), str(log)))
    rule = AFTER.format("files").replace('"chat"', '"slow"') if watched else ""
    async with opened(tmp_path, rule, slow) as arena:
        result = await arena.run(CALLED_OFF)
        assert result.status == "success", result.error
    told = sorted(log.read_text().splitlines())
    if watched:
        assert told == [f"continues {bit}" for bit in range(4)]
    else:
        assert {"cancelled 1", "cancelled 3"} <= {*told}


LISTING = """
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    answer = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "slow", "version": "1"},
              "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
              "content": [], "resources": [], "prompts": [],
              "tools": [{"name": "send", "inputSchema": {"type": "object"}}]}
    print(told["method"], file=open(sys.argv[1], "a"))
    changed = {"method": "notifications/tools/list_changed"}
    for message in ({"id": told["id"], "result": answer}, changed) if "id" in told else ():
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
"""

ASKED = """
import asyncio
from servers import slow
await slow.send()
await mcp_files.read_note(topic="doors")
ask = runtime.list_resources, runtime.list_prompts, runtime.query_tool_docs, lambda _: slow.send()
await asyncio.gather(*(each("slow") for each in ask), return_exceptions=True)
"""


@pytest.mark.guarantee("cancelled-calls")
async def test_asking_what_a_server_offers_carries_nothing_past_a_flow_rule(tmp_path: Path) -> None:
    log, script = tmp_path / "slow", tmp_path / "slow.py"
    script.write_text(LISTING)
    slow = replace(recorder("slow", log), args=(str(script), str(log)))
    async with opened(tmp_path, AFTER.format("files").replace('"chat"', '"slow"'), slow) as arena:
        result = await arena.run(ASKED)
    assert result.status == "success", result.error
    _, _, after = log.read_text().partition("tools/call\n")
    assert after in ("", "tools/list\n")  # The bridge itself asks once after a change.


async def test_a_plan_is_no_way_around(arena: Arena) -> None:
    code = STOPPED["a page says whom to send a file to"]
    planned = await arena.run(code, mode="plan", owner="me")
    assert planned.status == "success", planned.error
    plan = planned.plan
    assert plan is not None
    [held] = plan.calls
    assert (held.action, held.rule) == ("ask", "flow rule 'lethal-combination'")
    with pytest.raises(RefusedError):
        await arena.engine.apply(ApplyRequest(plan_id=plan.plan_id, owner="me"))
    assert arena.sent(*OUTSIDE) == []


async def test_a_retry_is_no_way_around(arena: Arena) -> None:
    code = STOPPED["a page says whom to send a file to"]
    first = await arena.run(code.partition("await mcp_chat")[0] + "raise SystemExit(1)", owner="me")
    arena.forget()
    second = await arena.run(code, retry_of=first.run_id, owner="me")
    assert second.receipt is not None
    assert second.receipt.replayed == 2
    assert [refused.why for refused in second.refused] == ["ask: flow rule 'lethal-combination'"]
    assert arena.sent(*OUTSIDE) == []


async def test_runs_do_not_know_of_each_other(arena: Arena) -> None:
    first = await arena.run("(await mcp_mail.read_note(topic='inbox'))['text']")
    second = await arena.run(f"await mcp_chat.send(to='team', text={first.result!r})")
    assert second.status == "success", second.error
    assert len(arena.sent("chat")) == 1


ME: Mapping[str, Any] = {"principal": TERMINAL, "owner": TERMINAL}


@pytest.mark.parametrize("name", TWO_RUNS)
async def test_nothing_gets_out_in_two_runs_by_what_there_is(tmp_path: Path, name: str) -> None:
    before, keeps, sends = TWO_RUNS[name]
    async with opened(tmp_path, POLICY + STAYS_HERE) as arena:
        if before:
            first = await arena.run(before, **ME)
            assert first.status == "success", first.error
        kept = await arena.run(SECRET_READ + keeps, **ME)
        assert kept.status == "success", kept.error
        result = await arena.run(sends, **ME)
        why = [refused.why for refused in result.refused]
        assert why == ["deny: flow rule 'private data stays here'"], (result.error, result.result)
        assert arena.sent(*OUTSIDE) == []


@pytest.mark.parametrize(
    ("policy", "learns"),
    [
        ("", True),
        (POLICY + STAYS_HERE, False),
        (AFTER.format("files"), False),
        (AFTER.format("crm"), True),
    ],
)
async def test_no_names_of_fields_are_learnt_after_what_a_flow_rule_counts_was_read(
    tmp_path: Path, policy: str, learns: bool
) -> None:
    async with opened(tmp_path, policy) as arena:
        result = await arena.run(SECRET_READ * 3, **ME)
        assert result.status == "success", result.error
        assert bool(arena.engine.servers.inventory.shape_revision) is learns


BROKEN = "'bro' + 'ken'"
"""Computed, so that nothing is started before the program is."""

ERRORS: Mapping[str, str] = {
    "at a call": f"await runtime.call_tool({BROKEN}, 'read_note', {{}})",
    "at a list of tools": f"await runtime.list_tools({BROKEN})",
    "at its documentation": f"await runtime.query_tool_docs({BROKEN})",
    "at a list of resources": f"await runtime.list_resources({BROKEN})",
    "at a list of prompts": f"await runtime.list_prompts({BROKEN})",
    "at a resource": f"await runtime.read_resource({BROKEN}, 'x:y')",
}
"""Ways to a text that a server says instead of an answer."""


@pytest.mark.parametrize("way", ERRORS)
async def test_what_a_server_says_when_it_does_not_start_does_not_get_out(
    tmp_path: Path, way: str
) -> None:
    source = Source(client="Test", scope="user", path="/test.json", key="mcpServers.broken")
    script = f"import sys; sys.exit({SECRET!r})"
    broken = ServerSpec(
        name="broken", transport="stdio", source=source, command=sys.executable, args=("-c", script)
    )
    policy = f'{POLICY}{STAYS_HERE}[policy.servers.broken]\nlabels = ["private-data"]\n'
    code = f"""
try:
    {ERRORS[way]}
except Exception as error:
    await mcp_chat.send(to="m", text=str(error))
"""
    async with opened(tmp_path, policy, broken) as arena:
        result = await arena.run(code)
        why = [refused.why for refused in result.refused]
        assert why == ["deny: flow rule 'private data stays here'"], (result.error, result.result)
        assert arena.sent(*OUTSIDE) == []
