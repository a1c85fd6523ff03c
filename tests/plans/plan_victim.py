"""A bridge that applies a plan, and kills itself at a given point of it.

    plan_victim.py HOME LOG KIND NUMBER before|after|never

KIND and NUMBER say which record of the audit log it does not live to write, or to see written. The
plan's id is printed before it is applied.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from bridge.callers.client import RunCaller
from bridge.clock import Clock
from bridge.gate.audit import AuditLog
from bridge.gate.pipeline import Gate, Grant
from bridge.guest.protocol.placeholders import WHOLE, write
from bridge.model import ApplyRequest, Json, RunRequest
from bridge.runs import Engine
from bridge.settings import Settings, load
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder

CALLS = 3


class KillingLog(AuditLog):
    """An audit log at one of whose records the process ends."""

    def __init__(self, directory: Path, kind: str, number: int, when: str) -> None:
        super().__init__(directory)
        self._at = kind, number
        self._when = when

    async def append(
        self, record: Mapping[str, Json], otherwise: Mapping[str, Json] | None = None, **_: str
    ) -> str:
        here = (record["kind"], record.get("call", 0)) == self._at
        if here and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = await super().append(record, otherwise, **_)
        if here and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def settings_for(home: Path) -> Settings:
    """Return settings that touch nothing outside of a directory."""
    environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_STATE_DIR": str(home / "state")}
    return load({"warm": "0"}, environ)


def engine_for(home: Path, log: Path) -> AbstractAsyncContextManager[Engine]:
    """Return an engine with a recorder."""

    finder = ListFinder(recorder("log", log))
    return engine_on(FakeBackend(), settings_for(home), finder=finder)


async def plan(engine: Engine, second: str) -> str:
    """Make a plan as a program would; return its id."""
    run = engine.gate.begin("planned", RunRequest(code="", mode="plan"), RunCaller(None, Clock()))
    gate = Gate(Grant(servers=None, calls=CALLS), engine.servers.pool.call_tool, run.context)
    holding = run.held_calls
    assert holding is not None
    await gate.call("log", "create", {"title": "one"})
    await gate.call("log", second, {"title": "two"} if second == "create" else {})
    await gate.call(
        "log", "create", {"title": "three", "parent": {WHOLE: write(holding.plan, 1, ["id"])}}
    )
    made = await engine.plans.keep(holding, "", run_id="planned")
    facts: dict[str, Json] = {"plan": made.plan_id, "calls": len(made.calls)}
    await run.audit.event("plan", facts)
    return made.plan_id


async def main(home: Path, log: Path, kind: str, number: int, when: str) -> None:
    """Apply a plan; do not return."""
    async with engine_for(home, log) as engine:
        plan_id = await plan(engine, "slow" if when == "never" else "create")
        print(plan_id, flush=True)
        directory = engine.settings.state_dir / "audit"
        engine.gate.audit = KillingLog(directory, kind, number, when)
        await engine.apply(ApplyRequest(plan_id=plan_id))


if __name__ == "__main__":
    anyio.run(
        main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
    )
