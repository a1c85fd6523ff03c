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
from tests.engine.plan_victim import engine_for
from tests.recorder_rig import recorded, tools_recorded
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "number", "when", "got", "known"),
    [
        ("apply", 0, "before", 0, "None of its calls was made"),
        ("apply", 0, "after", 0, "not done: #1 to #3."),
        ("call", 2, "before", 1, "done: #1; not done: #2 to #3."),
        ("call", 2, "after", 1, "done: #1; unknown: #2; not done: #3."),
        ("never", 0, "never", 2, "done: #1; unknown: #2; not done: #3."),
        ("outcome", 2, "before", 2, "done: #1; unknown: #2; not done: #3."),
        ("outcome", 2, "after", 2, "done: #1 to #2; not done: #3."),
        ("end", 0, "before", 3, "done: #1 to #3."),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_after_a_kill_the_audit_log_and_the_server_agree_and_nothing_is_repeated(
    tmp_path: Path, kind: str, number: int, when: str, got: int, known: str
) -> None:
    """What is called done was done, what is called not done was not; the rest is called unknown."""
    log = tmp_path / "calls.jsonl"
    words = [str(tmp_path), str(log), kind, str(number), when]
    # Its sandbox's directory is left, as everything is of what is killed.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.engine.plan_victim", *words]
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
    async with engine_for(tmp_path, log) as engine:
        for _ in range(2):
            with pytest.raises(UnknownPlanError) as caught:
                await engine.apply(ApplyRequest(plan_id=plan_id))
            assert known in caught.value.message, caught.value.message
    assert len(recorded(log)) == got
