"""What sessions promise, on each engine that keeps a process for them.

One test on each: a sandbox costs, and the promises follow from each other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import RunResult, SessionState
from bridge.runs import Engine
from tests.contract.rig import EngineSet, on_engines, rig_on
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.session_rig import OWNER, run, told
from tests.waiting import until

BEGIN = """
import json, os
total = 40
def more(n):
    return total + n
os.mkdir("deep"); os.chdir("deep")
open("a.txt", "w").write("kept")
"""
LOOK = '[more(2), json.dumps(1), os.path.basename(os.getcwd()), open("a.txt").read()]'
KEPT = [42, "1", "deep", "kept"]


def _state(result: RunResult) -> SessionState:
    return told(result).state


@pytest.mark.every_case
@on_engines("bubblewrap", "podman", "docker")
async def test_a_session_keeps_its_state_through_a_timeout_and_says_when_a_crash_takes_it(
    name: str, engines: EngineSet, tmp_path: Path
) -> None:
    settings = replace(settings_in(tmp_path), runtime=name, sessions=1)
    async with rig_on(engines.get(name), tmp_path / "run") as rig:
        async with engine_on(rig.backend, settings, finder=ListFinder()) as engine:
            await _through_a_timeout(engine)
            await _through_a_crash(engine)
        async with engine_on(rig.backend, settings, finder=ListFinder()) as engine:
            await _through_another_bridge(engine)


async def _through_a_timeout(engine: Engine) -> None:
    first = await run(engine, BEGIN)
    assert (first.status, _state(first)) == ("success", "new"), first.error
    assert (await run(engine, LOOK)).result == KEPT
    stopped = await run(engine, "import time\nwhile True:\n    time.sleep(0.01)", timeout=1)
    assert stopped.status == "timeout"
    assert "in <module>" in stopped.error
    assert "state is kept" in stopped.error
    again = await run(engine, LOOK)
    assert (again.result, _state(again)) == (KEPT, "kept")
    assert again.isolation is not None
    assert "no-network" in again.isolation.layers


async def _through_a_crash(engine: Engine) -> None:
    crashed = await run(engine, "total = 0\nos.kill(os.getpid(), 9)")
    assert (crashed.reason, _state(crashed)) == ("crash", "lost"), crashed.error
    assert "state is lost" in crashed.error
    restored = await run(engine, LOOK)
    assert (restored.result, _state(restored)) == (KEPT, "restored"), restored.error
    assert "after run 4" in told(restored).note


async def _through_another_bridge(engine: Engine) -> None:
    restored = await run(engine, LOOK)
    assert (restored.result, _state(restored)) == (KEPT, "restored"), restored.error
    ended = await run(engine, "more(1)", end_session=True)
    assert (ended.result, _state(ended)) == (41, "ended")
    await until(lambda: engine.sessions.open == 0)
    assert await engine.sessions.listed(OWNER) == ()
