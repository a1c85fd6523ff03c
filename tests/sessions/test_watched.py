"""What the gate and the audit log make of a session: its runs are one story, each with an end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder, tools_recorded
from tests.session_rig import run, told
from tests.waiting import until

POLICY = """
[policy.defaults]
untrusted = "allow"

[policy.servers.log]
labels = ["untrusted-input", "private-data"]

[policy.servers.chat]
labels = ["exfiltration"]
"""

READS = "text = await mcp_log.read_note(topic='topic')"
SENDS = "await mcp_chat.create(title='a')"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@asynccontextmanager
async def _opened(settings: Settings, log: Path, **changes: Any) -> AsyncIterator[Engine]:
    config = log.with_name("config.toml")
    config.write_text(POLICY)
    finder = ListFinder(recorder("log", log, notes={"topic": "text"}), recorder("chat", log))
    own = replace(settings, **changes)
    async with engine_on(FakeBackend(), own, config=config, finder=finder) as engine:
        yield engine


@pytest.mark.guarantee("sessions-watched")
async def test_a_later_run_may_not_send_what_an_earlier_one_has_read(
    settings: Settings, log: Path
) -> None:
    async with _opened(settings, log) as engine:
        assert (await run(engine, f"note = 1\n{READS}")).status == "success"
        refused = await run(engine, SENDS)
        assert refused.status == "error"
        assert [(count.server, count.tool) for count in refused.refused] == [("chat", "create")]
        assert (await run(engine, SENDS, session="other")).status == "success"
    async with _opened(settings, log, session_idle_timeout=0.01) as engine:
        assert (await run(engine, SENDS)).refused
        await until(lambda: engine.sessions.open == 0)
        again = await run(engine, SENDS)
        assert told(again).state == "restored"
        assert again.refused
    assert tools_recorded(log).count("create") == 1


async def test_the_record_of_a_run_names_its_session(settings: Settings, log: Path) -> None:
    async with _opened(settings, log) as engine:
        result = await run(engine, "1")
    records = [
        json.loads(line)
        for file in sorted((settings.state_dir / "audit").rglob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    [began] = [each for each in records if "code" in json.dumps(each)][:1]
    assert told(result).session_id in json.dumps(began)
