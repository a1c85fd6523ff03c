"""Programs that once got wrong advice, or none: each works now, or its answer names the fix."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bridge.upstream.launch import explain_spawn_failure
from tests.first_try.test_first_try import HERE, corpus, server

PROGRAMS: list[dict[str, Any]] = tomllib.loads((HERE / "advice.toml").read_text())["program"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_no_program_gets_wrong_advice(tmp_path: Path) -> None:
    wrong = {}
    async with corpus(tmp_path) as programs:
        for program in PROGRAMS:
            outcome, text = await programs.outcome(program)
            if outcome != ("one more try" if "answer" in program else "first try"):
                wrong[program["name"]] = text
    assert wrong == {}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_name_that_python_cannot_write_reaches_its_tool(tmp_path: Path) -> None:
    dashed = tmp_path / "dashed"
    source = (HERE / "tracker.py").read_text().replace('"get_issue"', '"get-issue"')
    log = f"import os\nos.environ['TRACKER_LOG'] = {str(tmp_path / 'log')!r}\n"
    source = source.replace("import base64\n", f"import base64\n{log}")
    dashed.write_text(f"#!{sys.executable}\n{source}")
    dashed.chmod(0o755)
    async with corpus(tmp_path, q=str(dashed)) as programs:
        for call in ('getattr(mcp_q, "get-issue")', 'mcp_q["get-issue"]', "mcp_q.get_issue"):
            text, calls, failed = await programs.run(f"await {call}(id=7)", None)
            assert not failed, text
            assert [one.split()[0] for one in calls] == ["get-issue"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_line_that_would_have_printed_is_not_said_to_be_lost(tmp_path: Path) -> None:
    code = "r = await mcp_tracker.get_issue(id=7)\nif not r:\n    print(r)"
    async with corpus(tmp_path) as programs:
        text, _, _ = await programs.run(code, None)
    assert "retry_of=" in text
    assert "not shown" not in text


@pytest.mark.parametrize(
    ("place", "written", "advice"),
    [
        (".local/bin", "own-command", "Give its full path, '$/own-command', as `command`"),
        (".nvm/versions/node/v22.1.0/bin", "own-command", "Give its full path, '$/own-command',"),
        ("tools", "~/tools/own-command", "Write its full path, '$/own-command', as `command`"),
        ("tools", "$HOME/tools/own-command", "Write its full path, '$/own-command', as `command`"),
        ("tools", "${HOME}/no/own-command", "as `command` in /t.json, once it is there"),
        ("on path", "own-command -y x", 'Write "command": "own-command", "args": ["-y", "x"]'),
        ("tools", "own-command", "Install it, or give its full path as `command`"),
        ("tools", "/no/own-command", "Correct `command`"),
    ],
)
def test_a_command_that_is_not_found_is_explained(
    tmp_path: Path, place: str, written: str, advice: str
) -> None:
    command = tmp_path / place / "own-command"
    command.parent.mkdir(parents=True)
    command.touch(mode=0o755)
    environ = {"HOME": str(tmp_path), "PATH": f"/usr/bin:{tmp_path}/on path"}
    _, remedy = explain_spawn_failure(server("s", written), environ, FileNotFoundError())
    assert advice.replace("$", str(command.parent), 1) in remedy
