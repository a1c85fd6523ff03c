"""What the audit log knows of a run or a plan, and its last records."""

from __future__ import annotations

from pathlib import Path

from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit.reading import (
    about,
    count_calls,
    last_records,
    read,
    records_since,
)
from tests.audit_rig import ALLOWED, DAY, FakeClock, a_call, records, tear, write


async def _runs(directory: Path) -> AuditLog:
    clock = FakeClock()
    log = AuditLog(directory, now=clock)
    first = RunAudit(log, "run-1")
    await first.began({"owner": "me"})
    await first.unsent("held", 1, a_call("a"), ALLOWED)
    await first.event("plan", {"plan": "feedfeedfeedfeed", "owner": "me", "calls": 2})
    await first.ended({"status": "success"})
    clock.now += DAY
    second = RunAudit(log, "run-2")
    await second.began({"plan": "feedfeedfeedfeed", "owner": "me"}, "apply")
    # What looks like another run's record is in an argument.
    await second.calling(1, a_call("a", run="run-1", kind="end"), ALLOWED, None)
    await second.called(1, "ok", size=10, ms=2)
    await second.calling(2, a_call("b"), ALLOWED, None)
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


async def test_a_plan_that_was_applied_at_once_is_shown_in_order(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock())
    made, applied = RunAudit(log, "run-1"), RunAudit(log, "run-2")
    await made.began({})
    await made.event("plan", {"plan": "feedfeedfeedfeed"})
    for number in range(3):
        await made.calling(number, a_call(), ALLOWED, None)
    await applied.began({"plan": "feedfeedfeedfeed"}, "apply")
    for number in range(3):
        await applied.calling(number, a_call(), ALLOWED, None)
    log.close()
    shown = about(tmp_path, "feedfeed")
    assert [each["kind"] for each in shown] == ["plan", "apply", "call", "call", "call"]
    assert [each["seq"] for each in shown] == [2, 6, 7, 8, 9]


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
