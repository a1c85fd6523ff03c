"""What the audit log knows of a run or a plan, and its last records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit.log import ALIVE
from bridge.gate.audit.reading import (
    about,
    count_calls,
    end_orphans,
    last_records,
    read,
    records_since,
)
from tests.audit_rig import ALLOWED, DAY, FakeClock, a_call, log_paths, records, tear, write


async def _runs(directory: Path) -> AuditLog:
    clock = FakeClock()
    log = AuditLog(directory, now=clock)
    first = RunAudit(log, "run-1")
    await first.record_start({"owner": "me"})
    await first.record_unsent("held", 1, a_call("a"), ALLOWED)
    await first.record_event("plan", {"plan": "feedfeedfeedfeed", "owner": "me", "calls": 2})
    await first.record_end({"status": "success"})
    clock.now += DAY
    second = RunAudit(log, "run-2")
    await second.record_start({"plan": "feedfeedfeedfeed", "owner": "me"}, "apply")
    # What looks like another run's record is in an argument.
    await second.record_call(1, a_call("a", run="run-1", kind="end"), ALLOWED, None)
    await second.record_outcome(1, "ok", size=10, ms=2)
    await second.record_call(2, a_call("b"), ALLOWED, None)
    return log


async def test_all_about_a_run_or_a_plan_is_found_by_its_beginning(tmp_path: Path) -> None:
    log = await _runs(tmp_path)
    log.close()
    assert [each["kind"] for each in about(tmp_path, "run-1")] == ["run", "held", "plan", "end"]
    assert [each["kind"] for each in about(tmp_path, "feedfeed")] == [
        "plan",
        "apply",
        "call",
        "outcome",
        "call",
    ]
    assert about(tmp_path, "nothing") == []


async def test_the_last_records_are_read_from_the_end_over_files(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock(), largest=500_000)
    await write(log, *(str(number) for number in range(100)), text="x" * 12_000)
    log.close()
    tear(tmp_path, b'{"kind":"ru')
    places: dict[str, int] = {}
    for count in (0, 1, 40, 99, 100, 1000):
        found, places = last_records(tmp_path, count)
        assert [each["run"] for each in found] == [str(n) for n in range(max(0, 100 - count), 100)]
    assert records_since(tmp_path, places) == []


async def test_the_last_records_are_those_of_all_bridges_by_their_times(tmp_path: Path) -> None:
    clock = FakeClock()
    one, two = AuditLog(tmp_path, now=clock), AuditLog(tmp_path, now=clock)
    for number in range(6):
        await write(one if number % 2 else two, str(number))
        clock.now += 1
    one.close()
    two.close()
    found, _ = last_records(tmp_path, 4)
    assert [each["run"] for each in found] == ["2", "3", "4", "5"]


async def test_records_that_come_are_read_from_where_the_last_were(tmp_path: Path) -> None:
    places: dict[str, int] = {}
    assert records_since(tmp_path, places) == []
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock)
    await write(log, "one")
    assert [each["run"] for each in records_since(tmp_path, places)] == ["one"]
    await write(log, "two")
    clock.now += DAY
    await write(log, "three")
    assert [each["run"] for each in records_since(tmp_path, places)] == ["two", "three"]
    log.close()
    tear(tmp_path, b'{"run":"four"}')
    assert records_since(tmp_path, places) == []
    tear(tmp_path, b"\n")
    assert [each["run"] for each in records_since(tmp_path, places)] == ["four"]


async def test_calls_are_counted_by_what_they_have_in_common(tmp_path: Path) -> None:
    log = await _runs(tmp_path)
    log.close()
    counting = count_calls(read(tmp_path), ["tool"])
    counts = {key[0]: count for key, count in counting.groups.items()}
    assert counts["shop.a"] == {"made": 1, "ok": 1, "held": 1, "size": 10, "ms": 2}
    assert counts["shop.b"] == {"made": 1, "unknown": 1, "size": 0, "ms": 0}
    assert counting.runs == 2
    by_both = count_calls(records(tmp_path), ["day", "outcome"])
    assert sorted(by_both.groups) == [
        ("2026-09-21", "held"),
        ("2026-09-22", "ok"),
        ("2026-09-22", "unknown"),
    ]


def living(directory: Path) -> list[Path]:
    return list(directory.glob(f"*{ALIVE}"))


def die(log: AuditLog) -> None:
    assert log._lock is not None
    os.close(log._lock)


def ends(directory: Path) -> list[dict[str, Any]]:
    return [record for record in records(directory) if record["kind"] == "end"]


async def two_runs(log: AuditLog) -> None:
    await RunAudit(log, "whole").record_start({})
    await RunAudit(log, "cut").record_start({})
    await RunAudit(log, "whole").record_end({"status": "success"})


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
    assert len(log_paths(tmp_path)) > 1
    other = AuditLog(tmp_path, replica="b")
    assert await end_orphans(other) == 0
    die(log)
    assert await end_orphans(other) == 1
    assert await end_orphans(other) == 0


async def test_a_second_crash_loses_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had recorded is not recorded again."""
    dead = AuditLog(tmp_path, replica="a")
    for number in range(3):
        await RunAudit(dead, f"run-{number}").record_start({})
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
    assert len(living(tmp_path)) == 1
    log.close()
    assert not living(tmp_path)
