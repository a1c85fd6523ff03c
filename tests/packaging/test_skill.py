"""The skill that teaches code mode: short, and its programs run on real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "packaging" / "plugin" / "skills" / "code-mode" / "SKILL.md"
SCRIPTS = Path(sys.executable).parent
FILESYSTEM = ROOT / "tests" / "node" / "node_modules" / ".bin" / "mcp-server-filesystem"

MAX_LINES = 200

PROGRAM = re.compile(r"(?P<session><!-- session -->\n)?```python\n(?P<code>.*?)```\n", re.DOTALL)

SAID = (
    "git git_log",
    "max_count: int = 10",
    "lines",
    "2 commits at",
    "1 files, such as ['[FILE] notes.txt']",
    "skipped: git_show",
    "characters in out/commits.txt",
    "",
    "2 commits by 1 authors",
    "second",
)
"""A part of each program's output."""


def test_the_skill_is_short() -> None:
    assert SKILL.read_text().count("\n") < MAX_LINES


@pytest.mark.slow
@pytest.mark.node
async def test_the_programs_of_the_skill_run(tmp_path: Path) -> None:
    programs = list(PROGRAM.finditer(SKILL.read_text()))
    assert len(programs) == SKILL.read_text().count("```python") == len(SAID)
    parameters = StdioServerParameters(
        command=str(SCRIPTS / "mcp-code-bridge"), cwd=_project(tmp_path), env=_environ(tmp_path)
    )
    with (tmp_path / "bridge.log").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            for program, said in zip(programs, SAID, strict=True):
                session = {"session": "skill"} if program["session"] else {}
                arguments = {"code": program["code"], **session}
                result = await client.call_tool("run_python", arguments)
                text = "".join(getattr(block, "text", "") for block in result.content)
                assert not result.is_error, text
                assert said in text, text


def _project(home: Path) -> Path:
    """Make a repository with two commits and a file, and the servers that the skill names."""
    project = home / "project"
    project.mkdir()
    (project / "notes.txt").write_text("a note\n")
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=a@example.org", "-C", str(project)]
    subprocess.run([*git, "init", "-q"], check=True)
    for subject in ("first", "second"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], check=True)
    servers = {
        "git": {"command": str(SCRIPTS / "mcp-server-git"), "args": ["--repository", str(project)]},
        "time": {"command": str(SCRIPTS / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "filesystem": {"command": str(SCRIPTS / "node"), "args": [str(FILESYSTEM), str(project)]},
    }
    (home / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    (home / "config.toml").touch()
    (home / "run").mkdir(mode=0o700)
    return project


def _environ(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(home),
        "MCP_BRIDGE_CONFIG": str(home / "config.toml"),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "MCP_SERVERS_CONFIG": str(home / "servers.json"),
        "MCP_BRIDGE_WARM": "0",
        "XDG_RUNTIME_DIR": str(home / "run"),
    }
