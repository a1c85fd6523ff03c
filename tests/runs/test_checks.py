"""The preflight in a run: what it stops, when, and what it adds to a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import RunResult
from bridge.runs import Engine
from bridge.settings.policy import PolicySpec, parse_policy
from bridge.upstream import server as session
from tests.engine_rig import ListFinder, Opener, run_program, workshop
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code

TOOLBOX = Path(__file__).parent.parent / "fakes" / "servers" / "toolbox.py"

TYPO = "print('started')\nawait mcp_work_shop.sya(what='x')"


def _rules(result: RunResult) -> list[tuple[int, str, str]]:
    return [(found.line, found.rule, found.severity) for found in result.findings]


@pytest.mark.parametrize(
    "policy", [PolicySpec(), parse_policy({"defaults": {"untrusted": "allow"}}, "policy")]
)
async def test_a_tool_that_is_not_listed_is_looked_for_once_more(
    opened: Opener, finder: ListFinder, monkeypatch: pytest.MonkeyPatch, policy: PolicySpec
) -> None:
    """Before its program is refused, its call denied or its documentation missed.

    Some servers do not say that they have more tools now.
    """
    monkeypatch.setattr(session, "MIN_CACHE_SECONDS", 0.0)
    raw = TOOLBOX.with_name("raw.py")
    finder.specs = (replace(workshop("raw"), args=(str(raw), "quiet")),)
    grow = "await mcp_raw.grow()\n"
    async with opened(policy=policy) as engine:
        result = await run_program(engine, grow)
        assert result.status == "success", result.error
        assert (await run_program(engine, "(await mcp_raw.grown(a=1))['a']")).result == 1
    async with opened(policy=policy) as engine:
        code = f"{grow}(await runtime.call_tool('raw', 'grown'[:], {{'a': 2}}))['a']"
        assert (await run_program(engine, code)).result == 2
    async with opened(policy=policy) as engine:
        code = f"{grow}str(await runtime.query_tool_docs('raw', 'grown'))"
        assert "grown" in str((await run_program(engine, code)).result)


@pytest.mark.parametrize(
    "grown",
    [
        "(await runtime.call_tool('raw', 'grown', {'a': 1}))['a']",
        "(await mcp_raw.grown(a=1))['a']",
        "(await mcp_raw['grown'](a=1))['a']",
        "(await getattr(mcp_raw, 'gro' + 'wn')(a=1))['a']",
    ],
)
async def test_a_tool_that_a_call_of_the_program_adds_is_called_by_its_name(
    opened: Opener, finder: ListFinder, grown: str
) -> None:
    finder.specs = (replace(workshop("raw"), args=(str(TOOLBOX.with_name("raw.py")), "")),)
    async with opened() as engine:
        # No call before it can have added the tool.
        early = await run_program(engine, f"{grown}\nawait mcp_raw.grow()")
        assert early.status != "success"
        result = await run_program(engine, f"await mcp_raw.grow()\n{grown}")
        assert (result.result, result.usage.tool_calls) == (1, 2), result.error
        missing = await run_program(engine, "await mcp_raw.grow()\nawait mcp_raw.gone()")
        assert "mcp_raw has no tool 'gone'" in missing.error


async def test_no_sandbox_is_spent_on_a_program_whose_servers_are_known(
    opened: Opener, backend: FakeBackend
) -> None:
    async with opened() as engine:
        assert (await run_program(engine, "(await mcp_work_shop.add(a=1, b=2)).sum")).result == 3
        before = backend.launched
        assert (await run_program(engine, TYPO)).status == "validation_error"
        assert backend.launched == before


async def test_no_server_is_started_for_a_mistake_that_needs_none(
    opened: Opener, backend: FakeBackend
) -> None:
    async with opened() as engine:
        result = await run_program(engine, "print(jsn.dumps([1]))")
        assert "`jsn` is not defined" in result.error
        assert backend.launched == 0


async def test_switched_off_it_says_nothing(opened: Opener) -> None:
    async with opened(preflight="off") as engine:
        result = await run_program(engine, TYPO)
        assert (result.status, result.stdout) == ("error", "started\n")
        assert "UnknownNameError" in result.error
        assert result.findings == ()


async def test_notes_come_with_a_failure_and_not_with_a_success(engine: Engine) -> None:
    code = "try:\n    await mcp_work_shop.nothing()\nexcept Exception:\n    pass\n"
    assert (await run_program(engine, code)).findings == ()
    result = await run_program(engine, f"{code}raise SystemExit(3)")
    assert (result.status, _rules(result)) == ("error", [(2, "unknown-tool", "note")])


async def test_a_tool_that_appeared_since_is_no_mistake(engine: Engine, finder: ListFinder) -> None:
    finder.specs = (replace(workshop("toolbox"), args=(str(TOOLBOX), "stdio")),)
    early = await run_program(engine, "await mcp_toolbox.grown()")
    assert _rules(early) == [(1, "unknown-tool", "deny")]
    assert (await run_program(engine, "await mcp_toolbox.grow()")).status == "success"
    assert (await run_program(engine, "await mcp_toolbox.grown()")).error == ""


async def test_an_unknown_server_is_told_together_with_what_else_is_wrong(engine: Engine) -> None:
    with raises_code("unknown_server") as caught:
        await run_program(engine, "await mcp_work_shpo.say(what='x')\nprint(jsn.dumps(1))")
    assert "mcp_work_shop" in str(caught.value)
    assert "`jsn`" in str(caught.value)


async def test_a_syntax_error_that_the_program_raises_is_its_own(engine: Engine) -> None:
    result = await run_program(engine, "exec('x = = 2')")
    assert (result.status, result.reason, result.findings[0].rule) == (
        "error",
        "exception",
        "dynamic-code",
    )


async def test_findings_of_the_guard_and_of_the_preflight_are_told_apart(engine: Engine) -> None:
    code = (
        "import subprocess\ntry:\n    await mcp_work_shop.nothing()\nexcept Exception:\n    1 / 0"
    )
    result = await run_program(engine, code)
    assert [(found.source, found.rule) for found in result.findings] == [
        ("guard", "process"),
        ("preflight", "unknown-tool"),
    ]
