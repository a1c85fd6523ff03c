"""Runs whose bridge died get their one end from another bridge."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit.log import ALIVE
from bridge.gate.audit.reading import end_orphans


def die(log: AuditLog) -> None:
    assert log._lock is not None
    os.close(log._lock)


def ends(directory: Path) -> list[dict[str, Any]]:
    lines = [
        line for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    return [record for record in map(json.loads, lines) if record["kind"] == "end"]


def files(directory: Path, suffix: str) -> int:
    return len(list(directory.glob(f"*{suffix}")))


async def two_runs(log: AuditLog) -> None:
    await RunAudit(log, "whole").began({})
    await RunAudit(log, "cut").began({})
    await RunAudit(log, "whole").ended({"status": "success"})


async def test_a_dead_bridges_run_gets_one_end_however_many_look(tmp_path: Path) -> None:
    dead = AuditLog(tmp_path, replica="a")
    await two_runs(dead)
    die(dead)
    others = [AuditLog(tmp_path, replica=name) for name in "bcd"]
    async with anyio.create_task_group() as tasks:
        for other in others * 3:
            tasks.start_soon(end_orphans, other)
    [whole, lost] = sorted(ends(tmp_path), key=lambda end: str(end["status"]), reverse=True)
    assert (whole["run"], whole["status"], whole["replica"]) == ("whole", "success", "a")
    assert (lost["run"], lost["status"]) == ("cut", "lost")
    assert lost["replica"] in "bcd"
    assert lost["of"] == whole["process"]


async def test_a_living_bridges_runs_are_left_alone_also_in_its_next_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, replica="a", largest=1)
    await two_runs(log)
    assert files(tmp_path, ".jsonl") > 1
    other = AuditLog(tmp_path, replica="b")
    assert await end_orphans(other) == 0
    die(log)
    assert await end_orphans(other) == 1
    assert await end_orphans(other) == 0


async def test_who_died_while_ending_them_leaves_the_rest_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had recorded is not recorded again."""
    dead = AuditLog(tmp_path, replica="a")
    for number in range(3):
        await RunAudit(dead, f"run-{number}").began({})
    die(dead)
    second = AuditLog(tmp_path, replica="b")

    async def cut_short(record: Any) -> str:
        monkeypatch.undo()
        await second.append(record)
        raise OSError("killed")

    monkeypatch.setattr(second, "append", cut_short)
    with pytest.raises(OSError, match="killed"):
        await end_orphans(second)
    die(second)
    third = AuditLog(tmp_path, replica="c")
    assert await end_orphans(third) == 2
    assert sorted(end["run"] for end in ends(tmp_path)) == ["run-0", "run-1", "run-2"]


async def test_a_bridge_that_closes_its_log_leaves_nothing_to_look_at(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, replica="a")
    await two_runs(log)
    assert files(tmp_path, ALIVE) == 1
    log.close()
    assert files(tmp_path, ALIVE) == 0
