"""The records of runs: their fields, their limits, and what readers find."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from bridge.cli.records import count_calls
from bridge.errors import AuditError, CallDeniedError, RefusedError
from bridge.event_loop import estimated_size
from bridge.gate.approval import Approval
from bridge.gate.audit import log as audit_log
from bridge.gate.audit import reading
from bridge.gate.audit.log import ALIVE, MAX_RECORD_BYTES, WHOLE_RECORDS, AuditLog, Kind, RunAudit
from bridge.gate.audit.reading import about, end_orphans, last_records, read, records_since
from bridge.gate.journal import arguments_digest
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.policy import Decision
from bridge.gate.services import GateContext
from bridge.model import Json
from tests.audit_rig import (
    ALLOWED,
    DAY,
    FakeClock,
    a_call,
    kinds,
    log_paths,
    records,
    tear,
    whole,
    write,
)


def _mask(value: Any, schema: Any) -> Any:
    return {key: "***" if key == "token" else item for key, item in value.items()}


async def test_a_calls_record_has_who_what_and_why(tmp_path: Path) -> None:
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1", mask=_mask, policy="sha256:p")
    start: dict[str, Any] = {"principal": "me", "code": "sha256:c", "servers": ["shop"]}
    await run.record_start({**start, "owner": ""})
    asked: dict[str, Any] = {"rule": "rule 'no force'", "reason": "why", "effect": "destructive"}
    decision = Decision(action="ask", **asked, led=("a.b",))
    approval = Approval(holds="run", earlier=True)
    await run.record_call(1, a_call(token="secret", to="x"), decision, approval)
    await run.record_outcome(1, "ok", size=12, ms=3.456)
    await run.record_refusal(2, a_call(), Decision(action="deny", rule="r"), "call_denied")
    await run.record_call(3, a_call(), ALLOWED, kind="held")
    await run.record_call(4, a_call(), None, kind="replayed")
    await run.record_event("plan", {"plan": "feed" * 4, "calls": 1})
    await run.record_end({"status": "success", "reason": None})
    found = records(tmp_path)
    assert run.head == found[-1]["hash"]
    chain = ("seq", "prev", "hash", "time", "run")
    said = [{key: value for key, value in each.items() if key not in chain} for each in found]
    call = {"server": "shop", "tool": "write"}
    empty = {**call, "arguments": {}}
    made = {"arguments": {"token": "***", "to": "x"}, "decision": "ask", **asked, "led": ["a.b"]}
    made |= {"digest": arguments_digest({"token": "secret", "to": "x"})}
    refused = {"decision": "deny", "rule": "r", "effect": "write", "why": "call_denied"}
    allowed = {"decision": "allow", "rule": "default for writes", "effect": "write"}
    assert said == [
        {"kind": "run", **start, "policy": "sha256:p"},
        {"kind": "call", "call": 1, **call, **made, "approval": {"holds": "run", "earlier": True}},
        {"kind": "outcome", "call": 1, "outcome": "ok", "bytes": 12, "ms": 3.5},
        {"kind": "refused", "call": 2, **empty, **refused},
        {"kind": "held", "call": 3, **empty, **allowed},
        {"kind": "replayed", "call": 4, **empty},
        {"kind": "plan", "plan": "feed" * 4, "calls": 1},
        {"kind": "end", "status": "success", "refused": 1},
    ]
    assert {each["run"] for each in found} == {"r1"}


async def test_long_arguments_are_cut_with_a_digest_of_all_of_them(tmp_path: Path) -> None:
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1")
    arguments: dict[str, Any] = {"path": "/a", "text": "x" * 100_000, "list": list(range(5000))}
    await run.record_call(1, a_call(**arguments), ALLOWED, None)
    found = records(tmp_path)[0]
    assert found["cut"] == {"arguments": arguments_digest(arguments)}
    assert found["arguments"].startswith('{"list":[0,1,2,')
    assert found["arguments"].endswith(" characters of JSON)")
    assert whole(tmp_path).records == 1


def _deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"deeper": [value]}
    return value


@pytest.mark.parametrize(
    "arguments",
    [
        {"wide": {f"{number}" * 30: "y" * 900 for number in range(3000)}},
        {"deep": _deep(400)},
        {"deep": _deep(100_000)},
        {"many": [["z" * 900] * 90] * 90},
        {"odd": [float("nan"), float("inf"), 1 << 20_000, "\ud800"]},
        {"k" * 200_000: 1},
    ],
)
async def test_any_arguments_give_a_valid_record(
    tmp_path: Path, arguments: Mapping[str, Any]
) -> None:
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1")
    await run.record_call(1, a_call(tool="t" * 100_000, **arguments), ALLOWED, None)
    (found,) = records(tmp_path)
    assert found["server"] == "shop"
    assert (tmp_path / "2026-09-21-000001.jsonl").stat().st_size <= MAX_RECORD_BYTES + 1000
    assert whole(tmp_path).records == 1


class _Shop:
    """A server that opens the log's directory to other users, and a log that looks again."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log
        self.calls = 0
        self.breaks = False

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.breaks:
            assert self.log.directory is not None
            self.log.directory.chmod(0o777)
        self.log.close()
        return {"content": [], "number": self.calls}


async def test_a_result_gets_through_though_its_outcome_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    shop = _Shop(AuditLog(directory, now=FakeClock()))
    context = GateContext(audit=RunAudit(shop.log, "r1"))
    gate = Gate(Grant(servers=None, calls=10), shop.call, context)
    assert (await gate.call("shop", "write", {}))["number"] == 1
    shop.breaks = True
    assert (await gate.call("shop", "write", {}))["number"] == 2
    with pytest.raises(AuditError, match="may be written by other users"):
        await gate.call("shop", "write", {})
    assert shop.calls == 2
    directory.chmod(0o700)
    shop.breaks = False
    assert (await gate.call("shop", "write", {}))["number"] == 3
    shop.log.close()
    assert kinds(directory) == ["call", "outcome"] * 3
    assert whole(directory).records == 6


async def test_a_refusal_that_cannot_be_recorded_stays_a_refusal(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir()
    directory.chmod(0o777)
    shop = _Shop(AuditLog(directory, now=FakeClock()))
    context = GateContext(audit=RunAudit(shop.log, "r1"))
    gate = Gate(Grant(servers=frozenset(), calls=10), shop.call, context)
    with pytest.raises((AuditError, CallDeniedError)):
        await gate.call("shop", "write", {})
    assert shop.calls == 0


async def test_the_reference_explains_records_and_hashes(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "audit.md").read_text()
    for kind in (name for each in get_args(Kind) for name in get_args(each)):
        assert f"\n| `{kind}` | " in text
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1")
    await run.record_start({"servers": ["a"]})
    line = (tmp_path / "2026-09-21-000001.jsonl").read_bytes().removesuffix(b"\n")
    command = text.partition("sed -n 7p 2026-12-31-000001.jsonl | ")[2].partition("\n")[0]
    process = await anyio.run_process(["sh", "-c", command], input=line)
    assert process.stdout.decode().split()[0] == json.loads(line)["hash"]


async def test_arguments_that_cannot_be_searched_are_not_recorded(tmp_path: Path) -> None:
    searched: list[int] = []

    def mask(value: Json, schema: Json) -> Json:
        searched.append(estimated_size(value))
        if "deep" in value:
            raise RecursionError
        return value

    audit = RunAudit(AuditLog(tmp_path / "audit"), "r1", mask=mask)
    for arguments in (
        {"a": "x" * 3_000_000},
        {"b": ["y" * 300_000] * 10},
        {"c": [1] * 50_000},
        {"deep": "secret"},
    ):
        await audit.record_call(1, a_call(**arguments), ALLOWED, None)
    assert all(size <= audit_log.MAX_SEARCHED for size in searched)
    found = records(tmp_path / "audit")
    assert {record["arguments"] for record in found} == {audit_log.UNREADABLE}
    assert all(record["digest"].startswith("sha256:") for record in found)


DENIED = Decision(action="deny", rule="rule 'no force'")


def _refusals(directory: Path) -> list[dict[str, Any]]:
    return [record for record in records(directory) if record["kind"] == "refused"]


async def _flood(directory: Path, calls: list[Any]) -> RunAudit:
    log = AuditLog(directory)
    run = RunAudit(log, "r1")
    await run.record_start({})
    for number, call in enumerate(calls, 1):
        await run.record_refusal(number, call, DENIED, "call_denied")
    await run.record_end({"status": "error"})
    log.close()
    return run


@pytest.mark.guarantee("audit-floods")
async def test_equal_refusals_are_recorded_a_few_times_and_counted(tmp_path: Path) -> None:
    await _flood(tmp_path, [a_call(number=number) for number in range(4000)])
    found = _refusals(tmp_path)
    assert [record["arguments"] for record in found[:WHOLE_RECORDS]] == [
        {"number": number} for number in range(WHOLE_RECORDS)
    ]
    assert sum(record.get("times", 1) for record in found) == 4000
    assert len(found) == WHOLE_RECORDS + 1
    counted = found[WHOLE_RECORDS]
    assert (counted["server"], counted["tool"]) == ("shop", "write")
    assert (counted["rule"], counted["why"]) == (DENIED.rule, "call_denied")
    assert (counted["call"], counted["times"]) == (4000, 4000 - WHOLE_RECORDS)
    assert records(tmp_path)[-1]["refused"] == 4000
    whole(tmp_path)


@pytest.mark.guarantee("audit-floods")
async def test_refusals_of_other_kinds_do_not_hide_among_a_flood(tmp_path: Path) -> None:
    flood = [a_call("write"), a_call("delete"), a_call("write")] * 500
    await _flood(tmp_path, [*flood, a_call("steal", what="all")])
    found = _refusals(tmp_path)
    by_tool: Counter[str] = Counter()
    for record in found:
        by_tool[record["tool"]] += record.get("times", 1)
    assert by_tool == {"write": 1000, "delete": 500, "steal": 1}
    assert next(r for r in found if r["tool"] == "steal")["arguments"] == {"what": "all"}
    assert len(found) < 50


@pytest.mark.guarantee("audit-floods")
@pytest.mark.parametrize("length", [10, 2000, 100_000])
async def test_refusals_have_a_limit(tmp_path: Path, length: int) -> None:
    text = "é" * length
    calls = [a_call(f"tool{number}{text}", text=text) for number in range(700)]
    await _flood(tmp_path, calls)
    found = _refusals(tmp_path)
    written = sum(path.stat().st_size for path in log_paths(tmp_path))
    assert written < 50 * WHOLE_RECORDS * 4096
    assert sum(record.get("times", 1) for record in found) == 700
    assert len({record.get("tool") for record in found}) <= 50 + 1
    if length > 1000:
        assert len(found[0]["arguments"]) < 3000
        assert len(found[0]["cut"]["arguments"]) > 60
    whole(tmp_path)


@pytest.mark.guarantee("audit-floods")
async def test_a_run_has_a_limit_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "RUN_BYTES", 100_000)
    log = AuditLog(tmp_path)
    run = RunAudit(log, "r1")

    async def call_often() -> None:
        for number in range(200):
            await run.record_call(number, a_call(text="x" * 5000), ALLOWED, None)
            await run.record_outcome(number, "ok", size=1, ms=1)

    with pytest.raises(AuditError) as refusal:
        await call_often()
    assert refusal.value.code == "audit_budget"
    await run.record_end({"status": "error"})
    log.close()
    found = records(tmp_path)
    counts = Counter(record["kind"] for record in found)
    assert 10 < counts["call"] == counts["outcome"] < 100
    assert (counts["refused"], counts["end"]) == (1, 1)
    assert found[-2]["why"] == "audit_budget"


@pytest.mark.guarantee("audit-floods")
async def test_counts_and_receipts_of_a_flood_are_true(tmp_path: Path) -> None:
    shop = _Shop(AuditLog(tmp_path))
    run = RunAudit(shop.log, "r1")
    gate = Gate(Grant(servers=frozenset({"shop"}), calls=100), shop.call, GateContext(audit=run))
    await gate.call("shop", "read", {})
    for number in range(150):
        with pytest.raises(RefusedError):
            await gate.call("mail", "send", {"number": number})
    await run.record_end({"status": "success"})
    assert sum(count.count for count in gate.tally.counts("refused")) == 150
    groups = count_calls(records(tmp_path), ["server"]).groups
    assert (groups["shop",]["made"], groups["mail",]["refused"]) == (1, 150)
    shown = [record for record in about(tmp_path, "r1") if record["kind"] == "refused"]
    counts = [(record["call"], record["times"]) for record in shown[-2:]]
    assert counts == [(100, 99 - WHOLE_RECORDS), (100, 51)]
    assert sum(record.get("times", 1) for record in shown) == 150


async def _runs(directory: Path) -> AuditLog:
    clock = FakeClock()
    log = AuditLog(directory, now=clock)
    first = RunAudit(log, "run-1")
    await first.record_start({"owner": "me"})
    await first.record_call(1, a_call("a"), ALLOWED, kind="held")
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


def live_files(directory: Path) -> list[Path]:
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
    assert len(live_files(tmp_path)) == 1
    log.close()
    assert not live_files(tmp_path)


async def test_a_bridge_that_was_late_for_the_lock_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had opened the file before the other bridge removed it."""
    dead = AuditLog(tmp_path, replica="a")
    await two_runs(dead)
    die(dead)

    @contextmanager
    def lock_late(path: Path, *, seconds: float) -> Iterator[None]:
        path.unlink()
        yield

    monkeypatch.setattr(reading, "exclusive_lock", lock_late)
    assert await end_orphans(AuditLog(tmp_path, replica="b")) == 0
