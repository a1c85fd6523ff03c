"""What flow rules know of by which ways data came into a program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from bridge.callers.client import RunCaller
from bridge.clock import Clock
from bridge.gate.pipeline import Gate, Grant
from bridge.model import RunRequest
from bridge.rpc.dispatcher import CallFailedError
from bridge.runs import Engine
from bridge.runs.guest_requests import GuestRequests
from bridge.settings import Settings
from tests.plans.plan_rig import log, opened
from tests.recorder_rig import recorder

__all__ = ["log"]

POLICY = """
[policy.defaults]
untrusted = "allow"

[policy.servers.log]
labels = ["untrusted-input", "private-data"]

[policy.servers.chat]
labels = ["exfiltration"]

[policy.privacy]
detect = ["email"]
servers = ["log"]
"""


@pytest.fixture
async def engine(settings: Settings, tmp_path: Path, log: Path) -> AsyncIterator[Engine]:
    """An engine with a server to read from and one that sends."""
    notes = {"ada@example.org": "text"}
    specs = [recorder("log", log, notes=notes), recorder("chat", log)]
    with anyio.fail_after(60):
        async with opened(settings, specs, policy=POLICY, tmp_path=tmp_path) as engine:
            yield engine


def _gate(engine: Engine, run_id: str = "", retry_of: str = "") -> Gate:
    request = RunRequest(code="1", retry_of=retry_of)
    run_id = run_id or uuid4().hex
    watch = engine.gate.begin(run_id, request, RunCaller(None, Clock()))
    return Gate(Grant(servers=None, calls=10), engine.servers.pool.call_tool, watch.context)


async def test_what_a_list_of_resources_says_was_read(engine: Engine) -> None:
    """Names of mails and customers are data, as far as servers with labels go."""
    gate = _gate(engine)
    questions = GuestRequests(engine.servers, engine.guide, gate)
    offers = await questions.handle("list_offers", {"server": "log", "kind": "resources"})
    assert "ada@" not in str(offers)
    assert "note:///" in str(offers)
    asked = {"server": "chat", "tool": "send", "arguments": {"to": "x", "text": str(offers)}}
    with pytest.raises(CallFailedError, match="lethal-combination"):
        await questions.handle("call_tool", asked)
