"""The record of each run: what is in it, who may read it, and how long it stays."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bridge.errors import BridgeError
from bridge.model import Json, RunRequest, RunResult
from bridge.model.runs import error_run
from bridge.render.text import compact
from bridge.runs import Engine, records
from bridge.runs.records import KEPT_BYTES, RunRecords
from bridge.settings import Settings
from tests.engine_rig import Opener
from tests.raised import raises_code

SECRET = "tr0ub4dor-and-3-horses"

KILLED = """
import anyio, sys
from bridge.model import RunRequest
from bridge.runs.records import RunRecords
from bridge.settings import load

async def main():
    async with RunRecords(load()).recording(RunRequest(code="1", run_id="dead")) as record:
        await record.begin()
        print("begun", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def keep(kept: RunRecords, run_id: str, owner: str = "stdio", stdout: str = "") -> None:
    request = RunRequest(code="1", run_id=run_id, owner=owner)
    async with kept.recording(request) as record:
        await record.begin()
        record.end(RunResult(run_id=run_id, status="success", summary="", stdout=stdout))


async def test_a_run_leaves_its_program_its_end_and_the_start_of_its_output(engine: Engine) -> None:
    code = f"print('x' * {2 * KEPT_BYTES})\nawait mcp_work_shop.add(a=1, b=2)"
    result = await engine.run(RunRequest(code=code, owner="stdio", client="tester"))
    [record] = engine.records.listed("stdio", 5)
    expected: dict[str, Json] = {"run": result.run_id, "program": code, "client": "tester"}
    expected |= {"status": "success", "calls": 1, "stdout": "x" * KEPT_BYTES}
    assert {name: record[name] for name in expected} == expected
    assert "3" in str(record["value"])
    assert record["time"] < record["ended"]
    [file] = engine.records.directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert compact(result).endswith(f"\n[run {result.run_id[:8]}]")


@pytest.mark.parametrize(
    ("code", "guard", "error"),
    [
        ("await mcp_work_shop.ad(a=1, b=2)", "advise", "The program didn't run and no tool was"),
        ("import ctypes", "enforce", "The program didn't run and no tool was called."),
        ("def f(:", "advise", "SyntaxError"),
        ("1 / 0", "advise", "ZeroDivisionError"),
    ],
)
async def test_a_program_that_fails_or_is_refused_has_a_record(
    opened: Opener, code: str, guard: str, error: str
) -> None:
    """A refusal does not say that nothing was started: a server may have been, to be asked."""
    async with opened(guard=guard) as engine:
        result = await engine.run(RunRequest(code=code))
        record = engine.records.find(None, result.run_id[:8])
    assert (record["program"], record["run"]) == (code, result.run_id)
    assert (record["status"], record["error"]) == (result.status, result.error)
    assert error in result.error
    assert "Nothing was started" not in result.error


async def test_an_error_that_keeps_a_program_from_running_names_its_record(engine: Engine) -> None:
    with pytest.raises(BridgeError) as raised:
        await engine.run(RunRequest(code="1", servers=("nope",)))
    result = error_run(raised.value)
    record = engine.records.find(None, result.run_id)
    assert (record["status"], record["reason"]) == ("error", "unknown_server")
    assert "nope" in str(record["error"])
    assert compact(result).endswith(f"[run {result.run_id[:8]}]")


async def test_secrets_stay_out_of_records(settings: Settings, opened: Opener) -> None:
    environ = {**settings.environ, "DEPLOY_TOKEN": SECRET}
    async with opened(environ=environ) as engine:
        code = f"print('{SECRET}')\nraise ValueError('{SECRET}')"
        await engine.run(RunRequest(code=code, name=SECRET))
        [file] = engine.records.directory.iterdir()
        assert "raise ValueError" in file.read_text("utf-8")
        assert SECRET not in file.read_text("utf-8")


async def test_off_keeps_nothing_and_names_nothing(opened: Opener) -> None:
    async with opened(run_records="off") as engine:
        result = await engine.run(RunRequest(code="print(1)"))
        assert compact(result) == "1\n"
        assert not engine.records.directory.exists()


async def test_a_record_belongs_to_its_owner(settings: Settings) -> None:
    kept = RunRecords(settings)
    await keep(kept, "aaaa", "http#1")
    await keep(kept, "bbbb", "http#2")
    assert [each["run"] for each in kept.listed("http#1", 9)] == ["aaaa"]
    assert {each["run"] for each in kept.listed(None, 9)} == {"aaaa", "bbbb"}
    with raises_code("unknown_run", match="No run 'bbbb'"):
        kept.find("http#1", "bbbb")


def test_a_run_is_running_and_lost_once_its_bridge_is_killed(settings: Settings) -> None:
    kept = RunRecords(settings)
    environ = {**settings.environ, "MCP_BRIDGE_STATE_DIR": str(settings.state_dir)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with subprocess.Popen([sys.executable, "-c", KILLED], env=environ, stdout=-1) as bridge:
        assert bridge.stdout is not None
        assert bridge.stdout.readline() == b"begun\n"
        assert kept.find(None, "dead")["status"] == "running"
        bridge.send_signal(signal.SIGKILL)
    assert kept.find(None, "dead")["status"] == "lost"
    [file] = kept.directory.iterdir()
    with file.open("a") as torn:
        torn.write('{"status":"succ')
    assert kept.find(None, "dead")["status"] == "lost"


async def test_old_records_and_those_beyond_the_limits_are_removed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RunRecords(settings)
    for number in range(6):
        await keep(kept, f"many{number}", "http#1", stdout="x" * 4000)
    await keep(kept, "only", "http#2", stdout="x" * 4000)
    await keep(kept, "old")
    [old] = kept.directory.glob("*.old.*")
    old.rename(
        kept.directory / old.name.replace(old.name[:13], f"{time.time() * 1000 - 1.3e9:.0f}")
    )
    monkeypatch.setattr(records, "MAX_ALL_BYTES", records.TIDY_BYTES + 17_000)
    kept.tidy()
    assert {each["run"] for each in kept.listed(None, 99)} == {"only", "many4", "many5"}


async def test_a_run_continues_where_no_record_can_be_kept(engine: Engine, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    engine.records.directory = in_the_way / "runs"
    result = await engine.run(RunRequest(code="print(1)"))
    assert (result.status, compact(result)) == ("success", "1\n")
