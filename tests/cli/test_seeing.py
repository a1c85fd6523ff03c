"""`runs`, `sessions`, `logs` and `config`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.gate.approval import Approval
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.policy import Decision
from bridge.model import RunRequest, RunResult, Usage
from bridge.runs.records import RunRecords
from bridge.sessions.checkpoints import Checkpoints, Saved
from bridge.settings import load
from bridge.store import Store
from bridge.upstream.stdio import LOG_BYTES, ServerLog, log_path
from tests.audit_rig import ALLOWED, a_call
from tests.cli.desk import Cli, command_line

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return command_line(capsys, "--state-dir", str(tmp_path))


async def record_a_run(state: Path, run_id: str, **ending: Any) -> None:
    log = AuditLog(state / "audit")
    audit = RunAudit(log, run_id)
    request = RunRequest(code="import os\nprint('\x1b[31m')", run_id=run_id, owner="stdio")
    async with RunRecords(load({"state_dir": str(state)}, {})).recording(request) as record:
        await record.begin()
        await audit.record_start({"code": "sha256:c"})
        approval = Approval(holds="session", waited_ms=2_300)
        await audit.record_call(1, a_call(path="/srv"), ALLOWED, approval)
        await audit.record_outcome(1, "ok", size=10, ms=12)
        await audit.record_refusal(
            2, a_call("wipe"), Decision(action="ask", rule="r"), "approval_refused"
        )
        record.end(RunResult(**{"run_id": run_id, "status": "success", "summary": "", **ending}))
    log.close()


def test_runs_are_listed_and_one_is_shown_with_its_calls(tmp_path: Path, commands: Cli) -> None:
    usage = Usage(wall_ms=1_540, tool_calls=1)
    anyio.run(partial(record_a_run, tmp_path, RUN, usage=usage, stdout="all done\n"))
    status, out, _ = commands("runs")
    head, row = out.splitlines()
    assert (status, head.split()) == (0, ["RUN", "WHEN", "STATUS", "TIME", "CALLS", "PROGRAM"])
    assert [*row.split()[:1], *row.split()[4:]] == [
        *(RUN[:8], "ok", "1.5", "s", "1", "import", "os", "…")
    ]
    status, out, _ = commands("runs", "show", RUN[:3])
    assert status == 0
    assert "\x1b" not in out
    parts = out.split("\n\n")
    assert [part.splitlines()[0].split()[0] for part in parts] == [
        *("run", "program", "calls", "stdout")
    ]
    call, refused = parts[2].splitlines()[1:]
    assert call.endswith("#1  shop.write  ok 12 ms  asked 2.3 s; allowed for 12 hours  path=/srv")
    assert "#2  shop.wipe  refused  ask (r) approval_refused" in refused
    assert parts[3] == "stdout\n  all done\n"
    found = json.loads(commands("runs", "show", RUN, "--json")[1])
    assert (found["run"], len(found["events"])) == (RUN, 4)
    assert [each["run"] for each in json.loads(commands("runs", "--json")[1])] == [RUN]


def test_unknown_runs_and_saved_sessions_are_named(tmp_path: Path, commands: Cli) -> None:
    assert commands("runs") == (0, "", "No runs are recorded.\n")
    for run_id in ("ab1", "ab2"):
        anyio.run(partial(record_a_run, tmp_path, run_id))
    for run, said in (("ab", "2 runs begin with 'ab': ab1, ab2"), ("c", "`runs` lists them")):
        status, _, err = commands("runs", "show", run)
        assert (status, said in err) == (2, True)
    assert "No sessions are saved" in commands("sessions")[2]
    kept = Checkpoints(Store(tmp_path), days=7)
    for owner, session_id in (("stdio", "id-1"), ("http#1", "id-2")):
        kept.save(owner, Saved(session_id=session_id, name="data", run=3, data=b"x" * 2000))
    out = commands("sessions")[1]
    names = [line.split()[:2] for line in out.splitlines()[1:]]
    assert (names, "2 kB" in out) == ([["data", "id-2"], ["data", "id-1"]], True)
    rows = json.loads(commands("sessions", "--json")[1])
    assert [each["id"] for each in rows] == ["id-2", "id-1"]


def test_a_server_s_log_is_printed_from_both_of_its_files(tmp_path: Path, commands: Cli) -> None:
    assert "No server has written" in commands("logs")[2]
    with ServerLog(log_path(tmp_path / "logs", "git hub")) as log:
        log.write(b"first\n" + b"x" * (LOG_BYTES - 6))
        log.write(b"\nsecond \x1b[31m\nthird\n")
    status, out, _ = commands("logs", "git hub", "-n", "2")
    assert (status, out) == (0, "second \x1b[31m\nthird\n")
    assert commands("logs", "git hub", "-n", "5")[1].startswith("first\nxxx")
    listed = commands("logs")[1]
    assert listed == f"{log_path(Path(), 'git hub').stem}\n"
    status, _, err = commands("logs", listed.strip().replace("hub", "hab"))
    assert (status, "Did you mean git_hub-" in err) == (2, True)


def test_config_says_where_each_value_comes_from(
    tmp_path: Path, commands: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('warm = 1\n\n[profiles.mine]\nextends = "strict"\ncall_timeout = 20\n')
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(file))
    monkeypatch.setenv("MCP_BRIDGE_PROFILE", "mine")
    monkeypatch.setenv("MCP_BRIDGE_STORE", "postgresql://me:pa55word@db/x")
    status, out, _ = commands("config", "--pids", "64")
    assert status == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    expected = {
        "pids": ["64", "--pids"],
        "profile": ["mine", "MCP_BRIDGE_PROFILE"],
        "timeout": ["5", "profile", "strict"],
        "call_timeout": ["20", f"{file}:5:", "profiles.mine.call_timeout"],
        "warm": ["1", f"{file}:1:", "warm"],
        "guard": ["enforce", "profile", "strict"],
        "cpus": ["0.5", "profile", "strict"],
        "store": ["postgresql://me@db/x", "MCP_BRIDGE_STORE"],
    }
    assert expected.items() <= rows.items()
    found = json.loads(commands("config", "--json")[1])
    assert found["file"] == str(file)
    assert found["settings"]["store"]["value"] == "postgresql://me@db/x"
    assert "pa55word" not in out
