"""A bridge killed at each point of a plan's application: what is known of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from bridge.errors import UnknownPlanError
from bridge.model import ApplyRequest
from tests.plans.plan_rig import traced
from tests.plans.plan_victim import engine_for, settings_for
from tests.recorder_rig import recorded, tools_recorded
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "number", "when", "got", "known"),
    [
        ("apply", 0, "before", 0, []),
        ("apply", 0, "after", 0, []),
        ("call", 2, "before", 1, ["ok"]),
        ("call", 2, "after", 1, ["ok", "unknown"]),
        ("never", 0, "never", 2, ["ok", "unknown"]),
        ("outcome", 2, "before", 2, ["ok", "unknown"]),
        ("outcome", 2, "after", 2, ["ok", "ok"]),
        ("end", 0, "before", 3, ["ok", "ok", "ok"]),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_after_a_kill_the_audit_log_and_the_server_agree_and_nothing_is_repeated(
    tmp_path: Path, kind: str, number: int, when: str, got: int, known: list[str]
) -> None:
    """What it calls done was done, what it does not have was not; the rest is unknown."""
    log = tmp_path / "calls.jsonl"
    words = [str(tmp_path), str(log), kind, str(number), when]
    # Its sandbox's directory is left, as everything is of what is killed.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.plans.plan_victim", *words]
    with anyio.fail_after(60):
        async with await anyio.open_process(
            command,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            env=environ,
        ) as victim:
            assert victim.stdout is not None
            plan_id = (await victim.stdout.receive()).decode().strip()
            if when == "never":
                await until(lambda: "slow" in tools_recorded(log))
                victim.kill()
            assert await victim.wait() == -signal.SIGKILL
    assert len(recorded(log)) == got
    assert list(traced(settings_for(tmp_path), plan_id)[0].values()) == known
    async with engine_for(tmp_path, log) as engine:
        for _ in range(2):
            with pytest.raises(UnknownPlanError) as caught:
                await engine.apply(ApplyRequest(plan_id=plan_id))
            assert "audit show PLAN" in caught.value.remedy
    assert len(recorded(log)) == got
