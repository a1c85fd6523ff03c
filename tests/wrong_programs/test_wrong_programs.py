"""Every mistake in the suite gets an error that names its fix, at the earliest moment that can."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.parsing import Unread, parse
from bridge.catalog.program.survey import Survey
from bridge.model import Finding, RunRequest, RunResult, ServerSpec, Source, Tool
from bridge.render.text import compact
from bridge.runs import Engine, open_engine
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.wrong_programs.programs import BEFORE, DURING, Wrong

HERE = Path(__file__).parent
TOOLS: list[dict[str, Any]] = json.loads((HERE / "tools.json").read_text())

FORGE = ServerEntry(
    name="git-forge",
    alias="git_forge",
    tools=tool_entries(
        [
            Tool(
                server="git-forge",
                name=tool["name"],
                input_schema=tool["inputSchema"],
                output_schema=tool.get("outputSchema"),
            )
            for tool in TOOLS
        ]
    ),
    known=True,
)


def _certain(code: str) -> list[Finding]:
    tree = parse(code)
    if isinstance(tree, Unread):
        # The sandbox's Python has the last word.
        return []
    verdict = check_program(Survey(tree), [FORGE], {FORGE.name: FORGE.alias})
    return list(verdict.certain)


@pytest.mark.parametrize("wrong", BEFORE, ids=lambda wrong: wrong.name)
def test_a_mistake_that_shows_in_the_text_stops_the_run_and_names_the_fix(wrong: Wrong) -> None:
    found = _certain(wrong.code)
    assert [finding.rule for finding in found] == [wrong.rule]
    text = str(found[0])
    assert not [phrase for phrase in wrong.phrases if phrase not in text], text
    assert found[0].line > 0


@pytest.mark.parametrize("wrong", DURING, ids=lambda wrong: wrong.name)
def test_what_is_not_certain_does_not_stop_the_run(wrong: Wrong) -> None:
    assert _certain(wrong.code) == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_mistake_that_shows_in_the_run_names_the_fix_too(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "s")}
    settings = load({"runtime": "bubblewrap"}, environ)
    spec = ServerSpec(
        name="git-forge",
        transport="stdio",
        source=Source(client="Test", scope="user", path="/test.json", key="mcpServers.git-forge"),
        command=sys.executable,
        args=(str(HERE / "forge.py"),),
    )
    lacking: dict[str, str] = {}
    async with open_engine(settings, finder=ListFinder(spec)) as engine:
        for wrong in DURING:
            result = await _run(engine, wrong.code)
            text = compact(result)
            if _is_read_as_meant(result):
                continue
            if result.status == "success" or any(part not in text for part in wrong.phrases):
                lacking[wrong.name] = text
    assert lacking == {}


def _is_read_as_meant(result: RunResult) -> bool:
    told = any(found.rule == "read-as" for found in result.findings)
    return told and result.status == "success"


async def _run(engine: Engine, code: str) -> RunResult:
    with anyio.fail_after(60):
        return await engine.run(RunRequest(code=code))
