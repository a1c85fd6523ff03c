"""`audit` at a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.cli.records import audit_lines, tail
from bridge.gate.approval import Approval
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.audit.reading import about
from bridge.gate.policy import Decision
from bridge.settings import load
from tests.audit_rig import ALLOWED, FakeClock, a_call, note
from tests.cli.desk import command_line
from tests.waiting import PATIENCE_SECONDS

RUN = "0123456789abcdef0123456789abcdef"


async def _record(directory: Path) -> None:
    log = AuditLog(directory, now=FakeClock())
    run = RunAudit(log, RUN)
    await run.record_start({"principal": "stdio", "code": "sha256:c"})
    await run.record_call(1, a_call(text="\x1b[31mred", number=7), ALLOWED, None)
    await run.record_outcome(1, "ok", size=1234, ms=5)
    await run.record_refusal(
        2, a_call("wipe"), Decision(action="deny", rule="rule 'no'"), "call_denied"
    )
    await run.record_end({"status": "success"})
    log.close()


class Commands:
    """The command line, on a state directory with one run recorded."""

    def __init__(self, state: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._run = command_line(capture, "--state-dir", str(state))

    @property
    def file(self) -> Path:
        return self.state / "audit" / "2026-09-21-000001.jsonl"

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self._run("audit", *words)

    def read(self, *words: str) -> tuple[int, Any]:
        """Run a command with --json; return its status and what it printed."""
        status, out, _ = self(*words, "--json")
        return status, json.loads(out)


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    anyio.run(_record, tmp_path / "audit")
    return Commands(tmp_path, capsys)


def test_verify_accepts_a_whole_log_and_names_a_changed_line(commands: Commands) -> None:
    *_, third, _, last = map(json.loads, commands.file.read_bytes().splitlines())
    head, expected = last["hash"], third["hash"]
    intact = f"5 records in 1 file: nothing was changed or removed.\nHead: {head}\n"
    assert commands("verify") == (0, intact, "")
    status, found = commands.read("verify")
    assert (status, found["ok"], found["head"], found["problems"]) == (0, True, head, [])
    status, out, _ = commands("verify", "--expect", expected)
    line = f"Expected hash {expected}: 2026-09-21-000001.jsonl, line 3: record 3."
    assert (status, line in out) == (0, True)
    status, found = commands.read("verify", "--expect", "ab" * 32)
    assert (status, found["ok"], found["expected"]["found"]) == (1, False, None)
    status, _, err = commands("verify", "--expect", "nonsense")
    assert (status, "is not a hash" in err) == (2, True)
    commands.file.write_bytes(commands.file.read_bytes().replace(b"wipe", b"read"))
    status, out, _ = commands("verify")
    wrong = "WRONG  2026-09-21-000001.jsonl, line 4: the line is not what a bridge wrote there"
    assert (status, wrong in out, "the log is NOT as it was written" in out) == (1, True, True)
    status, found = commands.read("verify")
    [problem] = found["problems"]
    assert (status, found["ok"]) == (1, False)
    assert (problem["file"], problem["line"]) == ("2026-09-21-000001.jsonl", 4)


def test_the_last_records_and_a_run_are_shown_a_line_each(commands: Commands) -> None:
    status, out, _ = commands("tail", "-n", "4")
    lines = out.splitlines()
    when = datetime.fromisoformat("2026-09-21T14:13:20Z").astimezone().strftime("%m-%d %H:%M:%S")
    assert (status, len(lines)) == (0, 3)
    assert lines[0].startswith(f"{when}  01234567  #1  shop.write  ok 5 ms  ")
    assert "\x1b" not in out
    assert "number=7" in lines[0]
    assert "#2  shop.wipe  refused  deny (rule 'no') call_denied" in lines[1]
    status, out, _ = commands("tail", "-n", "2", "--json")
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["refused", "end"]
    assert commands("show", RUN[:8])[1].count("\n") == 4
    lines = commands("show", RUN, "--json")[1].splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5]
    status, _, err = commands("show", "feedfeed")
    assert (status, "No run or plan 'feedfeed'" in err) == (1, True)
    assert commands("show", "no such/thing")[0] == 2


async def test_tail_follows_new_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load({"state_dir": str(tmp_path)}, dict(os.environ))
    out = ""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(tail, settings, follow=True, as_json=True))
            await anyio.wait_all_tasks_blocked()
            log = AuditLog(tmp_path / "audit")
            for number in range(3):
                await log.append(note(str(number)))
                while f'"run": "{number}"' not in out:
                    await anyio.sleep(0.01)
                    out += capsys.readouterr().out
            log.close()
            tasks.cancel_scope.cancel()
    assert [json.loads(line)["run"] for line in out.splitlines()] == ["0", "1", "2"]


def test_calls_are_counted(commands: Commands) -> None:
    out = commands("stats")[1]
    head, row, *_ = out.splitlines()
    assert head.split()[:2] == ["SERVER", "CALLS"]
    assert row.split() == ["shop", "1", "1", "0", "0", "1", "0", "0", "1,234", "5"]
    assert "1 run, 5 records." in out
    found = commands.read("stats", "--by", "tool,outcome")[1]
    assert [(each["tool"], each["outcome"], each["made"]) for each in found["groups"]] == [
        ("shop.wipe", "refused", 0),
        ("shop.write", "ok", 1),
    ]
    assert commands.read("stats", "--since", "2026-09-22")[1]["groups"] == []
    assert commands("stats", "--since", "2026-09-22") == (0, "", "No calls since 2026-09-22.\n")
    for wrong in ("22.09.2026", "yesterday", "2026-13-01", "20260922"):
        status, _, err = commands("stats", "--since", wrong)
        assert (status, f"'{wrong}' does not match the formats" in err) == (2, True)
    status, _, err = commands("stats", "--by", "colour")
    assert (status, "day, server, tool, decision, outcome" in err) == (2, True)


def test_runs_without_calls_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    async def record() -> None:
        log = AuditLog(tmp_path / "audit", now=FakeClock())
        run = RunAudit(log, RUN)
        await run.record_start({"code": "sha256:c"})
        await run.record_end({"status": "success"})
        log.close()

    anyio.run(record)
    commands = Commands(tmp_path, capsys)
    assert commands("stats") == (0, "No calls.\n\n1 run, 2 records.\n", "")
    shown = commands("show", RUN)[1].splitlines()
    assert [line.split()[3:] for line in shown] == [["run"], ["end", "status=success"]]


def test_on_a_terminal_a_call_is_one_line_and_no_name_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = "write_a_file_with_a_rather_long_name_indeed"

    async def record() -> None:
        log = AuditLog(tmp_path / "audit", now=FakeClock())
        run = RunAudit(log, RUN)
        allowed = Approval(holds="run", waited_ms=2340)
        await run.record_call(1, a_call(tool, path="/srv/x", text="y" * 200), ALLOWED, allowed)
        await run.record_outcome(1, "tool-error", size=10**9, ms=12_345_678)
        await run.record_call(2, a_call(), ALLOWED, None)
        log.close()

    anyio.run(record)
    commands = Commands(tmp_path, capsys)
    assert "no answer" in commands("show", RUN)[1].splitlines()[1]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for words in (("show", RUN), ("stats", "--by", "tool")):
        lines = re.sub(r"\x1b\[\d*m", "", commands(*words)[1]).splitlines()
        assert any(f"shop.{tool}" in line for line in lines)
        assert max(map(len, lines)) <= 80
    assert "asked 2.3 s; allowed for this run" in next(audit_lines(about(tmp_path / "audit", RUN)))


def test_a_directory_without_a_log_or_open_to_others_is_reported(commands: Commands) -> None:
    (commands.state / "audit").chmod(0o777)
    status, _, err = commands("verify")
    assert (status, "may be written by other users" in err) == (1, True)
    shutil.rmtree(commands.state / "audit")
    assert "Nothing has been recorded" in commands("verify")[1]
    rows = ("verify", 0), (f"verify --expect {'ab' * 32}", 1), ("tail", 0), ("stats", 0)
    for words, status in (*rows, (f"show {RUN}", 1)):
        assert commands(*words.split())[0] == status
