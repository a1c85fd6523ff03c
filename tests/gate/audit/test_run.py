"""What is recorded of a run and its calls, and what happens to it when it cannot be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from bridge.errors import AuditError, CallDeniedError
from bridge.gate.approval import Approval
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.audit.log import MAX_RECORD_BYTES, Kind
from bridge.gate.audit.run import MAX_SEARCHED, UNREADABLE
from bridge.gate.decision import Decision, canonical
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.services import GateContext
from bridge.model import Json
from bridge.offload import estimated_size
from tests.audit_rig import ALLOWED, FakeClock, a_call, kinds, records, whole


def _masked(value: Any, schema: Any) -> Any:
    return {key: "***" if key == "token" else item for key, item in value.items()}


def _digest(arguments: dict[str, Json]) -> str:
    return f"sha256:{hashlib.sha256(canonical(arguments).encode()).hexdigest()}"


async def test_a_calls_record_has_who_what_and_why(tmp_path: Path) -> None:
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1", mask=_masked, policy="sha256:p")
    await run.record_start(
        {"principal": "me", "owner": "", "code": "sha256:c", "servers": ["shop"]}
    )
    decision = Decision(
        action="ask", rule="rule 'no force'", reason="why", effect="destructive", led=("a.b",)
    )
    approval = Approval(holds="run", earlier=True)
    await run.record_call(1, a_call(token="secret", to="x"), decision, approval)
    await run.record_outcome(1, "ok", size=12, ms=3.456)
    await run.record_refusal(2, a_call(), Decision(action="deny", rule="r"), "call_denied")
    await run.record_unsent("held", 3, a_call(), ALLOWED)
    await run.record_unsent("replayed", 4, a_call())
    await run.record_event("plan", {"plan": "feed" * 4, "calls": 1})
    await run.record_end({"status": "success", "reason": None})
    found = records(tmp_path)
    assert run.head == found[-1]["hash"]
    chain = ("seq", "prev", "hash", "time")
    said = [{key: value for key, value in each.items() if key not in chain} for each in found]
    call = {"run": "r1", "server": "shop", "tool": "write"}
    allowed = {"decision": "allow", "rule": "default for writes", "effect": "write"}
    assert said == [
        {
            "kind": "run",
            "run": "r1",
            "principal": "me",
            "code": "sha256:c",
            "servers": ["shop"],
            "policy": "sha256:p",
        },
        {
            "kind": "call",
            "call": 1,
            **call,
            "arguments": {"token": "***", "to": "x"},
            "digest": _digest({"token": "secret", "to": "x"}),
            "decision": "ask",
            "rule": "rule 'no force'",
            "reason": "why",
            "effect": "destructive",
            "led": ["a.b"],
            "approval": {"holds": "run", "earlier": True},
        },
        {"kind": "outcome", "run": "r1", "call": 1, "outcome": "ok", "bytes": 12, "ms": 3.5},
        {
            "kind": "refused",
            "call": 2,
            **call,
            "arguments": {},
            "decision": "deny",
            "rule": "r",
            "effect": "write",
            "why": "call_denied",
        },
        {"kind": "held", "call": 3, **call, "arguments": {}, **allowed},
        {"kind": "replayed", "call": 4, **call, "arguments": {}},
        {"kind": "plan", "run": "r1", "plan": "feed" * 4, "calls": 1},
        {"kind": "end", "run": "r1", "status": "success", "refused": 1},
    ]


async def test_long_arguments_are_cut_with_a_digest_of_all_of_them(tmp_path: Path) -> None:
    run = RunAudit(AuditLog(tmp_path, now=FakeClock()), "r1")
    arguments: dict[str, Any] = {"path": "/a", "text": "x" * 100_000, "list": list(range(5000))}
    await run.record_call(1, a_call(**arguments), ALLOWED, None)
    found = records(tmp_path)[0]
    whole_digest = hashlib.sha256(canonical(arguments).encode()).hexdigest()
    assert found["cut"] == {"arguments": f"sha256:{whole_digest}"}
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
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls = 0
        self.breaks = False

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.breaks:
            self.directory.chmod(0o777)
        return {"content": [], "structuredContent": {"number": self.calls}}


async def test_a_result_gets_through_though_its_outcome_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    shop = _Shop(directory)
    log = AuditLog(directory, now=FakeClock())

    async def call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = await shop.call(server, tool, arguments)
        # So that it is opened again, and looked at, for the outcome.
        log.close()
        return found

    gate = Gate(Grant(servers=None, calls=10), call, GateContext(audit=RunAudit(log, "r1")))
    assert await gate.call("shop", "write", {}) == _answer(1)
    shop.breaks = True
    assert await gate.call("shop", "write", {}) == _answer(2)
    with pytest.raises(AuditError, match="may be written by other users"):
        await gate.call("shop", "write", {})
    assert shop.calls == 2
    directory.chmod(0o700)
    shop.breaks = False
    assert await gate.call("shop", "write", {}) == _answer(3)
    log.close()
    assert kinds(directory) == ["call", "outcome"] * 3
    assert whole(directory).records == 6


def _answer(number: int) -> dict[str, Any]:
    return {"content": [], "structuredContent": {"number": number}}


async def test_a_refusal_that_cannot_be_recorded_stays_a_refusal(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir()
    directory.chmod(0o777)
    shop = _Shop(directory)
    audit = RunAudit(AuditLog(directory, now=FakeClock()), "r1")
    gate = Gate(Grant(servers=frozenset(), calls=10), shop.call, GateContext(audit=audit))
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
    assert all(size <= MAX_SEARCHED for size in searched)
    found = records(tmp_path / "audit")
    assert {record["arguments"] for record in found} == {UNREADABLE}
    assert all(record["digest"].startswith("sha256:") for record in found)
