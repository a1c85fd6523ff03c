"""Runs leave their trail in the audit log, on the fake backend with a real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import AuditError
from bridge.gate.journal import digest
from bridge.runs import Engine
from bridge.settings import Settings
from tests.audit_rig import records, whole
from tests.engine_rig import ListFinder, engine_on, run_program
from tests.fakes.backend import FakeBackend
from tests.waiting import until

CODE = "await mcp_work_shop.add(a=1, b=2)"


def _log(settings: Settings) -> Path:
    return settings.state_dir / "audit"


async def test_a_run_is_recorded_from_its_beginning_to_its_end(
    engine: Engine, settings: Settings
) -> None:
    result = await run_program(engine, CODE, principal="somebody")
    assert result.status == "success"
    start, began, call, outcome, ended = records(_log(settings))
    assert [each["run"] for each in (start, began, call, outcome, ended)] == [result.run_id] * 5
    assert (start["kind"], start["server"], start["decision"]) == ("start", "work-shop", "allow")
    assert (began["kind"], began["principal"], began["mode"]) == ("run", "somebody", "run")
    assert (began["code"], began["servers"]) == (digest(CODE.encode()), ["work-shop"])
    assert (call["kind"], call["server"], call["tool"]) == ("call", "work-shop", "add")
    assert (call["arguments"], call["decision"], call["rule"]) == (
        {"a": 1, "b": 2},
        "allow",
        "no policy",
    )
    assert (outcome["kind"], outcome["call"], outcome["outcome"]) == ("outcome", call["call"], "ok")
    assert outcome["bytes"] == result.usage.tool_result_bytes
    assert (ended["kind"], ended["status"], ended["calls"]) == ("end", "success", 1)
    assert result.receipt is not None
    assert result.receipt.audit == ended["hash"] == whole(_log(settings)).head

    # A program that fails, and one that is cut off, have their ends too.
    failed = await run_program(engine, "1 / 0")
    assert records(_log(settings))[-1]["status"] == failed.status == "error"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_program, engine, "import time\ntime.sleep(60)")
        await until(lambda: records(_log(settings))[-1]["kind"] == "run")
        tasks.cancel_scope.cancel()
    assert records(_log(settings))[-1]["kind"] == "end"
    assert whole(_log(settings)).notes == []


async def test_nothing_runs_that_cannot_be_recorded(engine: Engine, settings: Settings) -> None:
    _log(settings).mkdir(parents=True)
    _log(settings).chmod(0o777)
    with pytest.raises(AuditError, match="cannot be written"):
        await run_program(engine, CODE)
    _log(settings).chmod(0o700)
    assert (await run_program(engine, CODE)).status == "success"


async def test_with_the_audit_off_there_is_no_log(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> None:
    off = replace(settings, audit="off")
    async with engine_on(backend, off, finder=finder) as engine:
        result = await run_program(engine, CODE)
    assert (result.status, result.receipt is not None and result.receipt.audit) == ("success", "")
    assert not _log(settings).exists()
