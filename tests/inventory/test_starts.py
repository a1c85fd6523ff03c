"""Servers start through the gate, and both starts and calls are decided on by definitions."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.callers.client import RunCaller
from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditError,
    BridgeError,
    CallDeniedError,
    UpstreamError,
)
from bridge.event_loop import Clock
from bridge.gate.pins import tool_digests
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.server_starts import StartApprover
from bridge.inventory.inventory import Listing, ToolCache
from bridge.model import RunRequest, ServerSpec, Tool
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import Store
from bridge.upstream.client_features import on_behalf_of
from tests.engine_rig import ListFinder
from tests.fakes.client import FakeClient, deciding
from tests.plans.plan_rig import WRITES_ASK, applied, approve, audited, log, opened, planned
from tests.recorder_rig import RECORDER, recorded, recorder
from tests.waiting import until

pytestmark = pytest.mark.guarantee("starts")

__all__ = ["log"]

STARTER = """
import os, pathlib, sys
audit = "".join(p.read_text() for p in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")))
with open(sys.argv[2], "a") as file:
    file.write(repr(audit) + chr(10))
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""

POLICY = """
[policy]
[policy.servers.log]
trust = true
[[policy.rules]]
name = "all of log"
server = "log"
action = "allow"
"""

ASKS = POLICY.replace("[policy]", '[policy]\nstart = "ask"')

PROGRAM = "await mcp_log.create(title='one')"


def _record_audit(spec: ServerSpec, settings: Settings, starts: Path, *more: str) -> ServerSpec:
    noting = ("-c", STARTER, str(settings.state_dir / "audit"), str(starts), *spec.args, *more)
    return replace(spec, args=noting)


class Bench:
    """The user's server, another of the same name, and their records of starts."""

    def __init__(self, settings: Settings, tmp_path: Path, log: Path) -> None:
        self.settings, self.tmp_path, self.log = settings, tmp_path, log
        self._starts = tmp_path / "starts"
        self.one = _record_audit(recorder("log", log), settings, self._starts)
        # It looks the same once it is started.
        self.other = _record_audit(recorder("log", log), settings, self._starts, "another")

    def engine(self, *specs: ServerSpec, policy: str = "") -> AbstractAsyncContextManager[Engine]:
        return opened(self.settings, [*specs], policy=policy, tmp_path=self.tmp_path)

    def starts(self) -> list[str]:
        return self._starts.read_text().splitlines() if self._starts.exists() else []

    def count(self) -> int:
        return len(self.starts())

    def records(self, kind: str = "start") -> list[dict[str, Any]]:
        lines = audited(self.settings).splitlines()
        return [record for line in lines if (record := json.loads(line))["kind"] == kind]


@pytest.fixture
def bench(settings: Settings, tmp_path: Path, log: Path) -> Bench:
    return Bench(settings, tmp_path, log)


def _redefine(engine: Engine, *specs: ServerSpec) -> None:
    finder = engine.servers._finder
    assert isinstance(finder, ListFinder)
    finder.specs = specs


async def _run(
    engine: Engine, client: FakeClient | None = None, code: str = PROGRAM, **fields: Any
) -> Any:
    fields = {"principal": "stdio", "owner": "stdio"} | fields
    with anyio.fail_after(60):
        return await engine.run(RunRequest(code=code, **fields), client)


async def test_a_start_is_on_record_before_there_is_a_process(bench: Bench) -> None:
    async with bench.engine(bench.one) as engine:
        result = await _run(engine)
    assert result.status == "success", result.error
    (record,) = bench.records()
    assert record["server"] == "log"
    assert record["definition"] == bench.one.definition
    assert (record["decision"], record["rule"]) == ("allow", "no policy")
    assert record["run"] == result.run_id
    assert record["transport"] == "stdio"
    (seen,) = bench.starts()
    assert '"kind":"start"' in seen
    assert bench.one.definition in seen


async def test_a_start_that_cannot_be_recorded_does_not_happen(bench: Bench) -> None:
    bench.settings.state_dir.mkdir(parents=True)
    (bench.settings.state_dir / "audit").write_text("no directory")
    async with bench.engine(bench.one) as engine:
        with pytest.raises(AuditError):
            await engine.servers.load(["log"])
        errors = await engine.servers.load_unknown(["log"])
        assert isinstance(errors["log"], AuditError)
        with pytest.raises(AuditError):
            await _run(engine)
    assert bench.count() == 0


@pytest.mark.parametrize(
    "policy", ['[policy]\nstart = "deny"\n', '[policy]\n[policy.servers."l*"]\nstart = "deny"\n']
)
async def test_a_denied_start_is_refused_and_recorded_once(bench: Bench, policy: str) -> None:
    async with bench.engine(bench.one, policy=policy) as engine:
        for _ in range(20):
            await engine.servers.load_unknown(["log"])
        errors = await engine.servers.load_unknown(["log"])
        assert "is not started" in errors["log"].message
        assert len(bench.records()) == 1
        errors = await engine.servers.load_unknown(["log"], fresh=True, patient=True)
        assert isinstance(errors["log"], CallDeniedError)
        _, errors = await engine.servers.load(["log"], tolerant=True)
        assert isinstance(errors["log"], CallDeniedError)
        requests = (
            engine.servers.pool.server("log").start(),
            engine.servers.pool.server("log").offers("resources"),
            engine.servers.pool.server("log").request("resources/read", {"uri": "a:b"}),
            engine.servers.pool.call_tool("log", "create", {}),
            engine.servers.ensure_current("log"),
            _run(engine),
            _run(engine, deciding("always")),
        )
        for request in requests:
            with pytest.raises(CallDeniedError):
                await request
    assert bench.count() == 0
    assert {(record["decision"], record["why"]) for record in bench.records()} == {
        ("deny", "call_denied")
    }


async def test_a_restart_is_decided_on_and_recorded_too(bench: Bench) -> None:
    config = bench.tmp_path / "config.toml"
    async with bench.engine(bench.one, policy=POLICY) as engine:
        config.write_text("[policy]\nstart = 7\n")
        errors = await engine.servers.load_unknown(["log"])
        assert isinstance(errors["log"], BridgeError)
        assert bench.count() == 0
        config.write_text(POLICY)
        await _run(engine)
        with pytest.raises(UpstreamError):
            await engine.servers.pool.call_tool("log", "die", {})
        await _run(engine)
        assert bench.count() == len(bench.records()) == 2
        with pytest.raises(UpstreamError):
            await engine.servers.pool.call_tool("log", "die", {})
        config.write_text(POLICY.replace("trust = true", 'trust = true\nstart = "deny"'))
        with pytest.raises(CallDeniedError):
            await engine.servers.pool.call_tool("log", "create", {"title": "x"})
    assert bench.count() == 2


async def test_a_run_that_names_a_server_asks_and_nothing_else_does(bench: Bench) -> None:
    long = replace(bench.one, args=(*bench.one.args, "x" * 10_000))
    async with bench.engine(long, policy=ASKS) as engine:
        client = deciding("once")
        with pytest.raises(ApprovalNeededError, match="too long for a question"):
            await _run(engine, client)
        assert (client.asked, bench.count()) == ([], 0)
    async with bench.engine(bench.one, policy=ASKS) as engine:
        errors = await engine.servers.load_unknown(["log"])
        assert isinstance(errors["log"], ApprovalNeededError)
        assert "servers approve log" in str(errors["log"].remedy)
        with pytest.raises(ApprovalNeededError):
            await _run(engine)
        no = deciding("no")
        with pytest.raises(ApprovalRefusedError):
            await _run(engine, no)
        assert len(no.asked) == 1
        assert bench.count() == 0
        yes = deciding("once")
        assert (await _run(engine, yes)).status == "success"
        (asked,) = yes.asked
        for part in ("log", sys.executable, str(RECORDER), bench.one.definition):
            assert part in asked["message"]
        assert bench.records()[-1]["approval"] == {"holds": "call", "earlier": False}
        # What was allowed once is asked about at the next start.
        with pytest.raises(UpstreamError):
            await engine.servers.pool.call_tool("log", "die", {})
        assert "is not started" in (await _run(engine)).error
        assert (await _run(engine, deciding("always"))).status == "success"
        with pytest.raises(UpstreamError):
            await engine.servers.pool.call_tool("log", "die", {})
        assert (await _run(engine)).status == "success"
    assert bench.count() == 3
    (found,) = bench.records("approved")
    assert (found["how"], found["holds"]) == ("client", "always")
    assert (found["definition"], found["file"]) == (bench.one.definition, bench.one.source.path)
    assert found["run"]


async def test_a_yes_is_of_use_to_the_run_that_asked_alone(bench: Bench) -> None:
    async with bench.engine(bench.one, policy=ASKS) as engine:
        starts = engine.gate.starts
        first, second = RunCaller(None, Clock()), RunCaller(None, Clock())
        yes = deciding("once")
        first.asker = StartApprover(run="first", ask=yes.elicit)
        second.asker = StartApprover(run="second", ask=deciding("no").elicit)
        with on_behalf_of(first):
            await starts.permit(bench.one)
        with on_behalf_of(second):
            with pytest.raises(ApprovalNeededError):
                await starts.start(bench.one)
            with pytest.raises(ApprovalRefusedError):
                await starts.permit(bench.one)
        with on_behalf_of(first):
            await starts.permit(bench.one)
            await starts.start(bench.one)
    assert len(yes.asked) == 1


async def test_another_definition_needs_a_persons_word(bench: Bench) -> None:
    async with bench.engine(bench.one, policy=POLICY) as engine:
        await _run(engine)
    async with bench.engine(bench.other, policy=POLICY) as engine:
        assert isinstance((await engine.servers.load_unknown(["log"]))["log"], ApprovalNeededError)
        with pytest.raises(ApprovalNeededError, match="another definition") as caught:
            await _run(engine)
        assert "mcp-code-bridge servers approve log" in str(caught.value.remedy)
        with pytest.raises(ApprovalNeededError):
            await engine.servers.pool.call_tool("log", "create", {"title": "x"})
        assert (bench.count(), len(recorded(bench.log))) == (1, 1)
        yes = deciding("always")
        assert (await _run(engine, yes)).status == "success"
        message = yes.asked[0]["message"]
        assert bench.one.definition[:19] in message
        assert bench.other.definition[:19] in message
        assert '"another"' in message
    async with bench.engine(bench.one, policy=POLICY) as engine:
        # Both were allowed, as two projects may have two versions.
        assert (await _run(engine)).status == "success"


async def test_a_refused_server_does_not_stop_a_run_that_has_others(bench: Bench) -> None:
    policy = (
        '[policy]\n[policy.servers.shut]\nstart = "deny"\n[policy.defaults]\nuntrusted = "allow"\n'
    )
    specs = [recorder("log", bench.log), recorder("shut", bench.log)]
    uses = ["mcp_shut.create(title='a')", "mcp_shut['create']('a')", "mcp_servers['shut'].x(1)"]
    uses += ["mcp_shut.list_tools()", "runtime.call_tool('shut', 'create', {'title': 'a'})"]
    code = "first = await mcp_log.create(title='one')\nseen = []\n" + "".join(
        f"try: await {use}\nexcept MCPError as e: seen.append((e.server, e.kind, str(e)))\n"
        for use in uses
    )
    async with bench.engine(*specs, policy=policy) as engine:
        result = await _run(engine, code=f"{code}seen")
        assert result.status == "success", result.error
        assert [(server, kind) for server, kind, _ in result.result] == [("shut", "policy")] * 5
        assert all("shut is not started: denied by the" in why for _, _, why in result.result)
        with pytest.raises(CallDeniedError):
            await _run(engine, code="await mcp_shut.create(title='a')")
    assert len(recorded(bench.log)) == 1


async def test_where_every_start_is_asked_about_a_change_is_told(bench: Bench) -> None:
    async with bench.engine(bench.one, policy=ASKS) as engine:
        starts = engine.gate.starts
        await _run(engine, deciding("always"))
        _redefine(engine, bench.other)
        client = deciding("once")
        assert (await _run(engine, client)).status == "success"
        assert "changed server" in client.asked[0]["message"]
        with pytest.raises(ApprovalNeededError, match="changed server"):
            await starts.start(bench.other, asked_for=True)
        await starts.start(replace(bench.one, name="new"), asked_for=True)


async def test_a_definition_has_names_of_variables_without_values(bench: Bench) -> None:
    keyed = replace(bench.one, env={**bench.one.env, "LOG_TOKEN": "hush-1"})
    renewed = replace(bench.one, env={**bench.one.env, "LOG_TOKEN": "hush-2"})
    preloaded = replace(bench.one, env={**keyed.env, "LD_PRELOAD": "hush-3"})
    async with bench.engine(keyed, policy=POLICY) as engine:
        await _run(engine)
        _redefine(engine, renewed)
        assert (await _run(engine)).status == "success"
        _redefine(engine, preloaded)
        client = deciding("no")
        with pytest.raises(ApprovalRefusedError):
            await _run(engine, client)
    assert "LD_PRELOAD" in client.asked[0]["message"]
    assert "hush" not in client.asked[0]["message"]
    unpinned = POLICY.replace("[policy]", "[policy]\npin = false")
    async with bench.engine(bench.other, policy=unpinned) as engine:
        assert (await _run(engine)).status == "success"


async def test_a_session_grant_is_not_for_another_definition_of_the_name(bench: Bench) -> None:
    policy = '[policy]\n[policy.defaults]\nuntrusted = "ask"\n'
    async with bench.engine(bench.one, policy=policy) as engine:
        await _run(engine, deciding("session"))
        quiet = FakeClient()
        await _run(engine, quiet)
        assert (len(recorded(bench.log)), quiet.asked) == (2, [])
        _redefine(engine, bench.other)
        await engine.servers.refresh()
        await engine.gate.starts.approve(bench.other, "terminal")
        asked = FakeClient()
        result = await _run(engine, asked)
        assert result.status == "error"
        assert "Allow " in asked.asked[0]["message"]
    assert len(recorded(bench.log)) == 2


async def test_another_definition_gets_no_plan_retry_or_listing(bench: Bench) -> None:
    async with bench.engine(bench.one) as engine:
        _, plan = await planned(engine, PROGRAM)
        first = await _run(engine)
        assert engine.servers.inventory.tools("log")
        _redefine(engine, bench.other)
        await engine.servers.refresh()
        assert engine.servers.inventory.tools("log") is None
        assert engine.servers.last_listing("log") is None
        for result in (
            await applied(engine, plan, FakeClient(answer=approve)),
            await _run(engine, retry_of=first.run_id),
        ):
            assert result.status == "error"
            assert "another definition" in result.error
    assert len(recorded(bench.log)) == 1


SEND: Mapping[str, Any] = {"to": "someone", "text": "all of it"}
ALLOWED = f'{WRITES_ASK}[policy.defaults]\nwrite = "allow"\n'


@asynccontextmanager
async def open_gate(bench: Bench, policy: str) -> AsyncIterator[tuple[Engine, Gate]]:
    """Open an engine, and the gate of a program that names none of its servers."""
    with anyio.fail_after(60):
        async with bench.engine(recorder("log", bench.log), policy=policy) as engine:
            caller = RunCaller(None, Clock())
            watch = await engine.gate.begin("f" * 32, RunRequest(code="1"), caller)
            call = engine.servers.pool.call_tool
            yield engine, Gate(Grant(servers=None, calls=10), call, watch.context)


async def test_no_call_is_decided_on_by_an_earlier_bridges_definition(bench: Bench) -> None:
    old = Tool(server="log", name="send", annotations={"readOnlyHint": True})
    listing = Listing(server="log", tools=(old,))
    ToolCache(Store(bench.settings.state_dir)).save(recorder("log", bench.log), listing)
    async with open_gate(bench, WRITES_ASK) as (engine, gate):
        await engine.servers.refresh()
        assert engine.servers.inventory.tool("log", "send") == old
        with pytest.raises(ApprovalNeededError, match="default for writes"):
            await gate.call("log", "send", SEND)
    assert recorded(bench.log) == []


async def test_a_server_that_was_started_again_is_asked_again(bench: Bench) -> None:
    async with open_gate(bench, ALLOWED) as (engine, gate):
        await gate.call("log", "redescribe", {"tool": "send", "description": "Another one."})
        await engine.servers.load(["log"])
        with pytest.raises(UpstreamError):
            await gate.call("log", "die", {})
        before = engine.servers.inventory.tool("log", "send")
        await gate.call("log", "send", SEND)
        now = engine.servers.inventory.tool("log", "send")
        assert before is not None
        assert now is not None
        assert before.description == "Another one." != now.description
        tools = await engine.servers.pool.server("log").tools()
        [fresh] = [tool for tool in tools if tool.name == "send"]
        assert tool_digests(now).schema == tool_digests(fresh).schema


async def redescribe(engine: Engine, gate: Gate) -> None:
    """Have the server announce another description of its tool."""
    server = engine.servers.pool.server("log")
    before = server.connection_epoch
    await gate.call("log", "redescribe", {"tool": "send", "description": "Takes all you have."})
    await until(lambda: server.connection_epoch != before)


async def test_a_change_that_was_announced_counts_at_once(bench: Bench) -> None:
    policy = ALLOWED.replace("[policy.defaults]", 'pin = "full"\n[policy.defaults]')
    async with open_gate(bench, policy) as (engine, gate):
        await gate.call("log", "send", SEND)
        await redescribe(engine, gate)
        with pytest.raises(ApprovalNeededError, match="changed tool"):
            await gate.call("log", "send", SEND)


async def test_a_changed_text_is_in_the_audit_log(bench: Bench) -> None:
    async with open_gate(bench, ALLOWED) as (engine, gate):
        await gate.call("log", "send", SEND)
        await redescribe(engine, gate)
        for _ in range(2):
            await gate.call("log", "send", SEND)
    assert [(call["tool"], call.get("changed", "")) for call in bench.records("call")] == [
        ("send", ""),
        ("redescribe", ""),
        ("send", "its description changed"),
        ("send", ""),
    ]
