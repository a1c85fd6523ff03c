"""Programs in plan mode on the fake backend: placeholders from the guest to the plan, and on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.model import ApplyRequest, Plan, RunRequest
from bridge.render.text import compact
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.plans.plan_rig import planned
from tests.raised import raises_code
from tests.recorder_rig import recorder

POLICY = """
[policy.defaults]
write = "allow"
destructive = "allow"
[policy.servers.rec]
trust = true
"""

CREATE = "mcp_rec.create"


@pytest.fixture
async def planner(
    settings: Settings, backend: FakeBackend, tmp_path: Path, log: Path
) -> AsyncIterator[Engine]:
    config = tmp_path / "config.toml"
    config.write_text(POLICY)
    finder = ListFinder(recorder("rec", log, notes={"a": "note a", "b": "note b"}))
    async with engine_on(backend, settings, config=config, finder=finder) as engine:
        yield engine


def shown(plan: Plan) -> list[tuple[str, Mapping[str, Any]]]:
    return [(call.tool, call.arguments) for call in plan.calls]


async def test_a_program_that_fails_otherwise_fails(planner: Engine) -> None:
    result, made = await planned(planner, f'item = await {CREATE}(title="one")\n1 / 0')
    assert (result.status, made.stopped) == ("error", "")
    assert "ZeroDivisionError" in result.error
    code = f'item = await {CREATE}(title="one")\nraise ValueError(f"bad {{item.id}}")'
    result, made = await planned(planner, code)
    assert (result.status, made.stopped) == ("error", "")
    assert "ValueError: bad ‹result of #1 rec.create›.id" in result.error
    assert "heldResult" not in result.summary


async def test_what_was_read_without_the_held_calls_is_told(planner: Engine) -> None:
    code = """
await mcp_rec.read_note(topic="a")
await mcp_rec.write_note(topic="a", text="new")
print((await mcp_rec.read_note(topic="a")).text)
"""
    result, made = await planned(planner, code)
    assert (result.stdout, made.stale) == ("note a\n", "1 × rec.read_note")
    assert "without what those will change: 1 × rec.read_note." in compact(result)
    _, made = await planned(planner, 'await mcp_rec.read_note(topic="a")')
    assert made.stale == ""


async def test_an_id_of_the_wrong_kind_says_where_it_belongs(planner: Engine) -> None:
    result, made = await planned(planner, f'await {CREATE}(title="one")')
    with raises_code("unknown_run", match="is a plan's id") as run_error:
        await planner.run(RunRequest(code="1", retry_of=made.plan_id))
    assert "`apply`" in run_error.value.remedy
    with raises_code("unknown_plan", match="is a run's id") as plan_error:
        await planner.apply(ApplyRequest(plan_id=result.run_id))
    assert 'mode="plan"' in plan_error.value.remedy
    with raises_code("unknown_run", match="no journal"):
        await planner.run(RunRequest(code="1", retry_of=made.plan_id, owner="somebody else"))


async def test_what_a_plan_shows_has_labels_for_what_nobody_knows(planner: Engine) -> None:
    code = (
        f"made = await {CREATE}(title='a')\n"
        "class Note:\n"
        "    def _repr_markdown_(self): return f'# {made.url} and {made.id}'\n"
        "display(Note()); print([made.url, f'{made.url}'])"
    )
    result, _ = await planned(planner, code)
    (item,) = result.shown
    assert item.text == "# ‹result of #1 rec.create›.url and ‹result of #1 rec.create›.id"
    assert result.stdout == "[‹result of #1 rec.create›.url, '‹result of #1 rec.create›.url']\n"
