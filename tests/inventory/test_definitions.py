"""The definitions that calls are decided on: those of the server that gets the call."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def _gate(engine: Engine) -> Gate:
    """Return what the calls of a program go through that names none of its servers."""
    request = RunRequest(code="1")
    watch = engine.gate.begin("f" * 32, request, RunCaller(None, Clock()))
    return Gate(Grant(servers=None, calls=10), engine.servers.pool.call_tool, watch.context)


async def test_what_an_earlier_bridge_knew_of_a_tool_decides_nothing(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    """Else a program would only have to call a server that it does not name."""
    spec = recorder("log", log)
    old = Tool(server="log", name="send", annotations={"readOnlyHint": True})
    ToolCache(Store(settings.state_dir)).save(spec, Listing(server="log", tools=(old,)))
    with anyio.fail_after(60):
        async with opened(settings, [spec], policy=WRITES_ASK, tmp_path=tmp_path) as engine:
            await engine.servers.refresh()
            assert engine.servers.inventory.tool("log", "send") == old
            with pytest.raises(ApprovalNeededError, match="default for writes"):
                await _gate(engine).call("log", "send", SEND)
    assert recorded(log) == []


async def test_a_server_that_was_started_again_is_asked_again(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    allowed = f'{WRITES_ASK}[policy.defaults]\nwrite = "allow"\n'
    with anyio.fail_after(60):
        async with opened(
            settings, [recorder("log", log)], policy=allowed, tmp_path=tmp_path
        ) as engine:
            gate = _gate(engine)
            changed = {"tool": "send", "description": "Another one."}
            await gate.call("log", "redescribe", changed)
            await engine.servers.load(["log"])
            with pytest.raises(UpstreamError):
                await gate.call("log", "die", {})
            other = engine.servers.inventory.tool("log", "send")
            assert other is not None
            assert other.description == "Another one."
            await gate.call("log", "send", SEND)
            now = engine.servers.inventory.tool("log", "send")
            assert now is not None
            assert now.description != "Another one."
            [fresh] = [
                t for t in await engine.servers.pool.server("log").tools() if t.name == "send"
            ]
            assert tool_digest(now) == tool_digest(fresh)


async def test_a_change_that_was_announced_counts_at_once(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    allowed = f'{WRITES_ASK}pin = "full"\n[policy.defaults]\nwrite = "allow"\n'
    with anyio.fail_after(60):
        async with opened(
            settings, [recorder("log", log)], policy=allowed, tmp_path=tmp_path
        ) as engine:
            gate = _gate(engine)
            await gate.call("log", "send", SEND)
            pool = engine.servers.pool
            before = pool.server("log").connection_epoch
            await gate.call(
                "log", "redescribe", {"tool": "send", "description": "Takes all you have."}
            )
            await until(lambda: pool.server("log").connection_epoch != before)
            with pytest.raises(ApprovalNeededError, match="changed tool"):
                await gate.call("log", "send", SEND)


async def test_a_changed_text_is_in_the_audit_log_and_no_question(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    allowed = f'{WRITES_ASK}[policy.defaults]\nwrite = "allow"\n'
    specs = [recorder("log", log)]
    with anyio.fail_after(60):
        async with opened(settings, specs, policy=allowed, tmp_path=tmp_path) as engine:
            gate = _gate(engine)
            await gate.call("log", "send", SEND)
            changed = {"tool": "send", "description": "Takes all you have."}
            before = engine.servers.pool.server("log").connection_epoch
            await gate.call("log", "redescribe", changed)
            await until(lambda: engine.servers.pool.server("log").connection_epoch != before)
            for _ in range(2):
                await gate.call("log", "send", SEND)
    calls = [
        one for one in map(json.loads, audited(settings).splitlines()) if one["kind"] == "call"
    ]
    assert [(one["tool"], one.get("changed", "")) for one in calls] == [
        ("send", ""),
        ("redescribe", ""),
        ("send", "its description changed"),
        ("send", ""),
    ]
