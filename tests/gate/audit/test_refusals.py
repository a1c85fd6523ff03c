"""What a flood of calls leaves in the audit log: little, and the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import AuditError, RefusedError
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit import run as run_module
from bridge.gate.audit.reading import about, count_calls
from bridge.gate.audit.run import WHOLE_RECORDS
from bridge.gate.decision import Decision
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.services import GateContext
from bridge.model import Json
from tests.audit_rig import ALLOWED, a_call, log_paths, records, whole

pytestmark = pytest.mark.guarantee("audit-floods")

DENIED = Decision(action="deny", rule="rule 'no force'")


def _refused(directory: Path) -> list[dict[str, Any]]:
    return [record for record in records(directory) if record["kind"] == "refused"]


async def _flooded(directory: Path, calls: list[Any]) -> RunAudit:
    log = AuditLog(directory)
    run = RunAudit(log, "r1")
    await run.record_start({})
    for number, call in enumerate(calls, 1):
        await run.record_refusal(number, call, DENIED, "call_denied")
    await run.record_end({"status": "error"})
    log.close()
    return run


async def test_equal_refusals_are_recorded_a_few_times_and_counted(tmp_path: Path) -> None:
    await _flooded(tmp_path, [a_call(number=number) for number in range(4000)])
    found = _refused(tmp_path)
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


async def test_refusals_of_other_kinds_do_not_hide_among_a_flood(tmp_path: Path) -> None:
    flood = [a_call("write"), a_call("delete"), a_call("write")] * 500
    await _flooded(tmp_path, [*flood, a_call("steal", what="all")])
    found = _refused(tmp_path)
    by_tool: Counter[str] = Counter()
    for record in found:
        by_tool[record["tool"]] += record.get("times", 1)
    assert by_tool == {"write": 1000, "delete": 500, "steal": 1}
    assert next(r for r in found if r["tool"] == "steal")["arguments"] == {"what": "all"}
    assert len(found) < 50


@pytest.mark.parametrize("length", [10, 100_000])
async def test_refusals_have_a_limit(tmp_path: Path, length: int) -> None:
    text = "é" * length
    calls = [a_call(f"tool{number}{text}", text=text) for number in range(700)]
    await _flooded(tmp_path, calls)
    found = _refused(tmp_path)
    written = sum(path.stat().st_size for path in log_paths(tmp_path))
    assert written < 50 * WHOLE_RECORDS * 4096
    assert sum(record.get("times", 1) for record in found) == 700
    assert len({record.get("tool") for record in found}) <= 50 + 1
    if length > 1000:
        assert len(found[0]["arguments"]) < 3000
        assert len(found[0]["cut"]["arguments"]) > 60
    whole(tmp_path)


async def test_a_run_has_a_limit_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RUN_BYTES", 100_000)
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


async def test_counts_and_receipts_of_a_flood_are_true(tmp_path: Path) -> None:
    async def make(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        return {"content": []}

    log = AuditLog(tmp_path)
    run = RunAudit(log, "r1")
    gate = Gate(Grant(servers=frozenset({"shop"}), calls=100), make, GateContext(audit=run))
    await run.record_start({})
    await gate.call("shop", "read", {})
    for number in range(150):
        with pytest.raises(RefusedError):
            await gate.call("mail", "send", {"number": number})
    await run.record_end({"status": "success"})
    log.close()
    assert sum(count.count for count in gate.tally.refused) == 150
    counting = count_calls(records(tmp_path), ["server"])
    groups = {key[0]: count for key, count in counting.groups.items()}
    assert (groups["shop"]["made"], groups["mail"]["refused"]) == (1, 150)
    shown = [record for record in about(tmp_path, "r1") if record["kind"] == "refused"]
    denied, beyond = shown[-2:]
    assert (denied["call"], denied["times"]) == (100, 99 - WHOLE_RECORDS)
    assert (beyond["call"], beyond["times"]) == (100, 51)
    assert sum(record.get("times", 1) for record in shown) == 150
