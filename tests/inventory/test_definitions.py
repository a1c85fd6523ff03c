"""A call is decided on by the tool's definition in the server that gets the call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.callers.client import RunCaller
from bridge.clock import Clock
from bridge.errors import ApprovalNeededError, UpstreamError
from bridge.gate.pins import tool_digest
from bridge.gate.pipeline import Gate, Grant
from bridge.inventory.tool_cache import Listing, ToolCache
from bridge.model import RunRequest, Tool
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import Store
from tests.plans.plan_rig import WRITES_ASK, audited, log, opened
from tests.recorder_rig import recorded, recorder
from tests.waiting import until

__all__ = ["log"]

SEND: Mapping[str, Any] = {"to": "someone", "text": "all of it"}
ALLOWED = f'{WRITES_ASK}[policy.defaults]\nwrite = "allow"\n'

Gated = Callable[[str], AbstractAsyncContextManager[tuple[Engine, Gate]]]


@pytest.fixture
def gated(settings: Settings, tmp_path: Path, log: Path) -> Gated:
    """Opens an engine, and the gate of a program that names none of its servers."""

    @asynccontextmanager
    async def open_gate(policy: str) -> AsyncIterator[tuple[Engine, Gate]]:
        specs = [recorder("log", log)]
        with anyio.fail_after(60):
            async with opened(settings, specs, policy=policy, tmp_path=tmp_path) as engine:
                request = RunRequest(code="1")
                watch = engine.gate.begin("f" * 32, request, RunCaller(None, Clock()))
                call = engine.servers.pool.call_tool
                yield engine, Gate(Grant(servers=None, calls=10), call, watch.context)

    return open_gate


async def test_no_call_is_decided_on_by_an_earlier_bridges_definition(
    settings: Settings, gated: Gated, log: Path
) -> None:
    old = Tool(server="log", name="send", annotations={"readOnlyHint": True})
    listing = Listing(server="log", tools=(old,))
    ToolCache(Store(settings.state_dir)).save(recorder("log", log), listing)
    async with gated(WRITES_ASK) as (engine, gate):
        await engine.servers.refresh()
        assert engine.servers.inventory.tool("log", "send") == old
        with pytest.raises(ApprovalNeededError, match="default for writes"):
            await gate.call("log", "send", SEND)
    assert recorded(log) == []


async def test_a_server_that_was_started_again_is_asked_again(gated: Gated) -> None:
    async with gated(ALLOWED) as (engine, gate):
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
        assert tool_digest(now) == tool_digest(fresh)


CHANGED = {"tool": "send", "description": "Takes all you have."}


async def change(engine: Engine, gate: Gate) -> None:
    """Have the server announce another description of its tool."""
    server = engine.servers.pool.server("log")
    before = server.connection_epoch
    await gate.call("log", "redescribe", CHANGED)
    await until(lambda: server.connection_epoch != before)


async def test_a_change_that_was_announced_counts_at_once(gated: Gated) -> None:
    policy = ALLOWED.replace("[policy.defaults]", 'pin = "full"\n[policy.defaults]')
    async with gated(policy) as (engine, gate):
        await gate.call("log", "send", SEND)
        await change(engine, gate)
        with pytest.raises(ApprovalNeededError, match="changed tool"):
            await gate.call("log", "send", SEND)


async def test_a_changed_text_is_in_the_audit_log(settings: Settings, gated: Gated) -> None:
    async with gated(ALLOWED) as (engine, gate):
        await gate.call("log", "send", SEND)
        await change(engine, gate)
        for _ in range(2):
            await gate.call("log", "send", SEND)
    records = map(json.loads, audited(settings).splitlines())
    calls = [record for record in records if record["kind"] == "call"]
    assert [(one["tool"], one.get("changed", "")) for one in calls] == [
        ("send", ""),
        ("redescribe", ""),
        ("send", "its description changed"),
        ("send", ""),
    ]
