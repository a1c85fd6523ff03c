"""What the gate and the audit log make of a session: its runs are one story, each with an end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.runs import Engine
from bridge.settings import Settings
from tests.plans.plan_rig import audited, log, opened
from tests.recorder_rig import recorder, tools_recorded
from tests.saved_functions.test_provenance_in_runs import POLICY
from tests.session_rig import run, told
from tests.waiting import until

__all__ = ("log",)

READS = "text = await mcp_log.read_note(topic='topic')"
SENDS = "await mcp_chat.create(title='a')"


@asynccontextmanager
async def _opened(settings: Settings, log: Path, **changes: Any) -> AsyncIterator[Engine]:
    specs = [recorder("log", log, notes={"topic": "text"}), recorder("chat", log)]
    own = replace(settings, **changes)
    async with opened(own, specs, policy=POLICY, tmp_path=log.parent) as engine:
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
    [began] = [line for line in audited(settings).splitlines() if '"code"' in line]
    assert told(result).session_id in began
