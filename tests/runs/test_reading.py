"""The static guard in a run: what each mode starts, stops and says."""

from __future__ import annotations

import dataclasses

import anyio
import pytest

from bridge.catalog.program.parsing import MAX_SCANNED_CHARS
from bridge.model import RunRequest, RunResult
from bridge.runs import Engine
from tests.engine_rig import Opener
from tests.fakes.backend import FakeBackend

SUSPECT = "import subprocess\nprint('ran')\n"
CALLS = "import subprocess\nprint((await mcp_work_shop.add(a=1, b=2)).sum)\n"


async def _run(engine: Engine, code: str) -> RunResult:
    with anyio.fail_after(60):
        return await engine.run(RunRequest(code=code, servers=("work-shop",)))


def _rules(result: RunResult) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in result.findings]


def _same(result: RunResult) -> RunResult:
    """Return what does not differ from one run to the next."""
    usage = dataclasses.replace(result.usage, wall_ms=0, cpu_ms=0, peak_memory_bytes=0)
    return dataclasses.replace(result, run_id="", usage=usage, receipt=None)


async def test_advice_is_added_to_the_result_and_changes_nothing_else(opened: Opener) -> None:
    async with opened(guard="off") as engine:
        plain = await _run(engine, CALLS)
    assert (plain.status, plain.stdout, plain.findings) == ("success", "3\n", ())
    async with opened() as engine:
        assert engine.settings.guard == "advise"
        told = await _run(engine, CALLS)
        assert _rules(told) == [(1, "process")]
        assert _same(dataclasses.replace(told, findings=())) == _same(plain)
        assert (await _run(engine, "print('fine')")).findings == ()


@pytest.mark.guarantee("enforced-guard")
@pytest.mark.parametrize(
    ("changes", "code", "reason", "said"),
    [
        ({"guard": "enforce"}, SUSPECT, "policy", "line 1: `import subprocess` starts"),
        ({"profile": "strict"}, CALLS, "policy", "line 1: `import subprocess` starts"),
        ({"profile": "strict", "guard": "off"}, SUSPECT, "policy", "(process)"),
        ({"profile": "mine", "strict": True}, SUSPECT, "policy", "(process)"),
        ({"guard": "enforce"}, "x = 1\nx = = 2", "validation", "line 2: syntax error"),
        ({"guard": "enforce"}, "-" * 50_000 + "1", "validation", "too deeply"),
        ({"guard": "enforce"}, "#" * (MAX_SCANNED_CHARS + 1), "validation", "characters"),
    ],
    ids=["enforce", "strict", "strict-off", "own-strict", "syntax", "deep", "long"],
)
async def test_enforcing_refuses_before_anything_is_started(
    opened: Opener,
    backend: FakeBackend,
    changes: dict[str, object],
    code: str,
    reason: str,
    said: str,
) -> None:
    async with opened(**changes) as engine:
        result = await _run(engine, code)
        assert (result.status, result.reason) == ("validation_error", reason)
        assert said in result.error
        assert "The program didn't run" in result.error
        assert len(result.findings) == 1
        assert (result.servers, result.stdout, result.isolation) == ((), "", None)
        assert result.timeout_seconds > 0
        states = engine.servers.pool.states().values()
        assert [(found.state, found.pid) for found in states] == [("idle", None)]
        assert backend.launched == 0
