"""Retries, end to end on the fake backend: the server's own log says what was called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.model import ApplyRequest, CallCount
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, run_program
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorded, recorder, tools_recorded

POLICY = """
[policy.defaults]
write = "allow"
destructive = "allow"
untrusted = "allow"
[policy.servers."*"]
trust = true
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
async def trusting(
    settings: Settings, backend: FakeBackend, tmp_path: Path, log: Path
) -> AsyncIterator[Engine]:
    """An engine that believes what the server says of its tools, so that there are reads."""
    config = tmp_path / "config.toml"
    config.write_text(POLICY)

    finder = ListFinder(recorder("notes", log, notes={"a": "text"}))
    async with engine_on(backend, settings, config=config, finder=finder) as engine:
        yield engine


CREATE = """
for number in range(10):
    if number == 6:
        {fault}
    await mcp_notes.create(title=f"t{{number}}", body="é")
"""


def _titles(log: Path) -> list[str]:
    return [given["title"] for tool, given in recorded(log) if tool == "create"]


async def test_a_program_that_failed_at_its_seventh_write_continues_there(
    trusting: Engine, log: Path
) -> None:
    first = await run_program(trusting, CREATE.format(fault="1 / 0"))
    assert (first.status, first.reason) == ("error", "exception")
    assert _titles(log) == [f"t{number}" for number in range(6)]
    slip = await run_program(trusting, "1 / 0", retry_of=first.run_id)
    assert slip.unused == (CallCount(server="notes", tool="create", count=6),)
    worse = CREATE.format(fault="pass").replace("range(10)", "range(8)") + "1 / 0"
    second = await run_program(trusting, worse, retry_of=slip.run_id)
    assert second.replayed == (CallCount(server="notes", tool="create", count=6),)
    assert second.receipt is not None
    assert (second.receipt.replayed, second.receipt.calls) == (6, {"notes": 2})
    # The run that it all began with: what the retries have done since counts.
    third = await run_program(trusting, CREATE.format(fault="pass"), retry_of=first.run_id)
    assert (third.status, third.error) == ("success", "")
    assert third.replayed == (CallCount(server="notes", tool="create", count=8),)
    assert _titles(log) == [f"t{number}" for number in range(10)]
    leaving_out = CREATE.format(fault="pass").replace("range(10)", "range(3)")
    fourth = await run_program(trusting, leaving_out, retry_of=third.run_id)
    assert fourth.unused == (CallCount(server="notes", tool="create", count=7),)
    assert len(_titles(log)) == 10


async def test_a_write_whose_server_died_is_unknown_and_not_repeated(
    trusting: Engine, log: Path
) -> None:
    code = """
for turn in range(3):
    try:
        await mcp_notes.die()
    except Exception as error:
        print(type(error).__name__, error)
        if "went away" in str(error):
            break
"""
    first = await run_program(trusting, code)
    assert "went away during tool 'die'" in first.stdout
    assert [(one.tool, one.count) for one in first.unknown] == [("die", 1)]
    again = await run_program(trusting, code, retry_of=first.run_id)
    assert again.stdout.count("may or may not have happened") == 3
    assert f"call 1 of run {first.run_id}" in again.stdout
    assert again.receipt is not None
    assert (again.receipt.unknown, again.receipt.calls) == (3, {})
    assert tools_recorded(log) == ["die"]
    # What is left is run without it, and the server is there again.
    rest = await run_program(trusting, "(await mcp_notes.create(title='rest')).id")
    assert rest.result == 1


async def test_a_plan_of_a_retry_does_not_hold_what_was_done(trusting: Engine, log: Path) -> None:
    first = await run_program(trusting, CREATE.format(fault="1 / 0"))
    planned = await run_program(
        trusting, CREATE.format(fault="pass"), retry_of=first.run_id, mode="plan"
    )
    assert planned.error == ""
    assert planned.plan is not None
    assert [call.arguments["title"] for call in planned.plan.calls] == ["t6", "t7", "t8", "t9"]
    assert len(_titles(log)) == 6
    applied = await trusting.apply(ApplyRequest(plan_id=planned.plan.plan_id))
    assert applied.status == "success"
    # By whatever name: what was done before the plan, and by it, is done.
    code = CREATE.format(fault="pass")
    for name in (first.run_id, planned.run_id, applied.run_id):
        again = await run_program(trusting, code, retry_of=name)
        assert again.replayed == (CallCount(server="notes", tool="create", count=10),)
    assert _titles(log) == [f"t{number}" for number in range(10)]
