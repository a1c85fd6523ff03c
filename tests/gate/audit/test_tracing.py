"""What the audit log knows of a run or a plan, and its last records."""

from __future__ import annotations

from pathlib import Path

from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit.counting import Counting
from bridge.gate.audit.reading import CHUNK_BYTES, Place, last_records, records_since
from bridge.gate.audit.tracing import about
from tests.audit_rig import ALLOWED, DAY, FakeClock, a_call, records, tear, write


async def _runs(directory: Path) -> AuditLog:
    """Record a run that plans, and its application, cut off in the middle of its second call."""
    clock = FakeClock()
    log = AuditLog(directory, now=clock)
    first = RunAudit(log, "run-1")
    await first.began({"owner": "me"})
    await first.held(1, a_call("a"), ALLOWED)
    await first.planned("feedfeedfeedfeed", {"owner": "me", "calls": 2})
    await first.ended({"status": "success"})
    clock.now += DAY
    second = RunAudit(log, "run-2")
    await second.applying("feedfeedfeedfeed", {"owner": "me"})
    # What looks like another run's record is in an argument.
    await second.calling(1, a_call("a", run="run-1", kind="end"), ALLOWED, None)
    await second.called(1, "ok", size=10, ms=2)
    await second.calling(2, a_call("b"), ALLOWED, None)
    return log


async def test_a_run_is_told_by_its_calls_and_what_became_of_them(tmp_path: Path) -> None:
    """A call without an outcome is unknown: it may have been made."""
    log = await _runs(tmp_path)
    found = await log.find_run("run-2", "me")
    assert found is not None
    assert [str(call) for call in found.calls] == ["1. shop.a: ok", "2. shop.b: unknown"]
    assert [call.number for call in found.unknown] == [2]
    assert found.ended == {}
    earlier = await log.find_run("run-1")
    assert earlier is not None
    assert [str(call) for call in earlier.calls] == ["1. shop.a: held"]
    assert (earlier.unknown, earlier.ended["status"]) == ((), "success")
    log.close()


async def test_a_plan_is_told_with_the_run_that_applied_it(tmp_path: Path) -> None:
    """After a crash nothing else knows which of its calls were made."""
    log = await _runs(tmp_path)
    found = await log.find_plan("feedfeedfeedfeed", "me")
    assert found is not None
    assert found.made["calls"] == 2
    assert found.applied is not None
    assert found.applied.run_id == "run-2"
    assert [call.outcome for call in found.applied.calls] == ["ok", "unknown"]
    log.close()


async def test_nobody_is_told_of_other_owners_runs_and_plans(tmp_path: Path) -> None:
    """An id that was seen somewhere gives nobody an account of what it did."""
    log = await _runs(tmp_path)
    assert await log.find_run("run-2", "") is None
    assert await log.find_plan("feedfeedfeedfeed", "somebody") is None
    assert await log.find_run("run-3", "me") is None
    assert await log.find_plan("run-2", "me") is None
    assert await AuditLog(None).find_run("run-2") is None
    assert await AuditLog(tmp_path / "none").find_run("run-2") is None
    log.close()


async def test_all_about_a_run_or_a_plan_is_found_by_its_beginning(tmp_path: Path) -> None:
    """Of a plan, also the run that applied it."""
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
    """However large the records are, and whatever follows them."""
    log = AuditLog(tmp_path, now=FakeClock(), largest=2 * CHUNK_BYTES)
    await write(log, *(str(number) for number in range(100)), text="x" * 12_000)
    log.close()
    tear(tmp_path, b'{"kind":"ru')
    place = Place()
    for count in (0, 1, 40, 99, 100, 1000):
        found, place = last_records(tmp_path, count)
        assert [each["run"] for each in found] == [str(n) for n in range(max(0, 100 - count), 100)]
    assert records_since(tmp_path, place) == ([], place)


async def test_records_that_come_are_read_from_where_the_last_were(tmp_path: Path) -> None:
    """Into the next file, and never half of one."""
    assert records_since(tmp_path, Place()) == ([], Place())
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock)
    await write(log, "one")
    found, place = records_since(tmp_path, Place())
    assert [each["run"] for each in found] == ["one"]
    await write(log, "two")
    clock.now += DAY
    await write(log, "three")
    found, place = records_since(tmp_path, place)
    assert [each["run"] for each in found] == ["two", "three"]
    assert records_since(tmp_path, place) == ([], place)
    log.close()


async def test_calls_are_counted_by_what_they_have_in_common(tmp_path: Path) -> None:
    """Each call once, with its outcome, however it ended."""
    log = await _runs(tmp_path)
    log.close()
    counting = Counting(by=("tool",))
    counting.feed(records(tmp_path))
    counts = {key[0]: count for key, count in counting.finish()}
    assert (counts["shop.a"].made, counts["shop.a"].ok, counts["shop.a"].held) == (1, 1, 1)
    assert (counts["shop.a"].size, counts["shop.a"].ms) == (10, 2)
    assert (counts["shop.b"].made, counts["shop.b"].unknown) == (1, 1)
    assert counting.runs == 2
    by_both = Counting(by=("day", "outcome"))
    by_both.feed(records(tmp_path))
    assert [key for key, _ in by_both.finish()] == [
        ("2026-09-21", "held"),
        ("2026-09-22", "ok"),
        ("2026-09-22", "unknown"),
    ]
