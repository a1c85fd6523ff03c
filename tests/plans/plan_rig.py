"""Plans as tests make and apply them: an engine with a policy and a recorder called "log"."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.gate.audit.reading import about
from bridge.model import ApplyRequest, Plan, RunRequest, RunResult, ServerSpec
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient
from tests.recorder_rig import recorder

WRITES_ASK = """
[policy]
[policy.servers.log]
trust = true
"""

APPROVED = {"action": "accept", "content": {"decision": "apply"}}


async def approve(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return APPROVED


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@asynccontextmanager
async def opened(
    settings: Settings, specs: list[ServerSpec], *, policy: str = "", tmp_path: Path
) -> AsyncIterator[Engine]:
    config = tmp_path / "config.toml"
    config.write_text(policy)
    async with engine_on(
        FakeBackend(), settings, config=config, finder=ListFinder(*specs)
    ) as engine:
        yield engine


@dataclass
class Bench:
    """Where plans are made: with a recorder called "log", which writes to a file."""

    settings: Settings
    place: Path
    log: Path

    def opened(
        self, *more: ServerSpec, policy: str = "", **fields: Any
    ) -> AbstractAsyncContextManager[Engine]:
        specs = [recorder("log", self.log, **fields), *more]
        return opened(self.settings, specs, policy=policy, tmp_path=self.place)


@pytest.fixture
def bench(settings: Settings, tmp_path: Path, log: Path) -> Bench:
    return Bench(settings, tmp_path, log)


@pytest.fixture
async def engine(bench: Bench) -> AsyncIterator[Engine]:
    async with bench.opened(notes={"topic": "text"}) as engine:
        yield engine


async def planned(engine: Engine, code: str, **fields: Any) -> tuple[RunResult, Plan]:
    with anyio.fail_after(60):
        result = await engine.run(RunRequest(code=code, mode="plan", **fields))
    assert result.plan is not None
    return result, result.plan


async def applied(
    engine: Engine, plan: Plan, client: FakeClient | None = None, **fields: Any
) -> RunResult:
    with anyio.fail_after(60):
        # Only a person who is known can say yes.
        request = ApplyRequest(plan_id=plan.plan_id, **{"principal": "me", **fields})
        return await engine.apply(request, client)


def audited(settings: Settings) -> str:
    files = sorted((settings.state_dir / "audit").glob("*.jsonl"))
    return "".join(path.read_text() for path in files)


def trace_plan(settings: Settings, plan_id: str) -> tuple[dict[int, str], Mapping[str, Any]]:
    """Return what the audit log knows of a plan's calls by their numbers, and of its end."""
    found = about(settings.state_dir / "audit", plan_id)
    applied = [record["run"] for record in found if record["kind"] == "apply"]
    mine = [record for record in found if record["run"] in applied]
    # Of a call that went out and has no outcome no one knows what became of it.
    outcomes = {each["call"]: "unknown" for each in mine if each["kind"] == "call"}
    outcomes |= {each["call"]: each["outcome"] for each in mine if each["kind"] == "outcome"}
    return outcomes, next((each for each in mine if each["kind"] == "end"), {})


def statuses(result: RunResult) -> list[str]:
    return [
        line["status"]
        for line in result.result
        for _ in range(line.get("to", line["number"]) - line["number"] + 1)
    ]


THREE = """
first = await mcp_log.create(title="one", body="b")
second = await mcp_log.create(title=f"below {first.id}", parent=first.id)
await mcp_log.write_note(topic=f"{second.title}!", text=second.url)
"""
