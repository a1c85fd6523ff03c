"""The programs of `examples/`, on real servers, as their readers would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult
from tests.record import record_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = Path(sys.executable).parent
FILESYSTEM = ROOT / "tests/node/node_modules/.bin/mcp-server-filesystem"

POLICY = """
[policy.defaults]
write = "allow"
destructive = "allow"

[policy.servers."*"]
trust = true
"""

COMMITS = (
    ("Ada", "2026-11-02"),
    ("Ben", "2026-11-02"),
    ("Ada", "2026-11-03"),
    ("Eve", "2026-11-05"),
)

pytestmark = pytest.mark.node


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with settings, texts and a file of teams, and servers for both."""
    folder = tmp_path / "project"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "one.toml").write_text("timeout_ms = 30\nname = 'one'\n")
    (folder / "conf" / "two.toml").write_text("name = 'two'\n")
    (folder / "three.toml").write_text("# timeout_ms is old\ntimeout_ms=5\n")
    (folder / "teams.json").write_text(json.dumps({"Ada": "core", "Ben": "docs"}))
    for number in range(12):
        (folder / f"page{number}.md").write_text("words about words\n" * number)
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    for author, day in COMMITS:
        who = {"NAME": author, "EMAIL": "a@example.org", "DATE": f"{day}T12:00:00+00:00"}
        names = {f"GIT_{role}_{key}": value for key, value in who.items() for role in ROLES}
        commit = [*git, "commit", "-q", "--allow-empty", "-m", f"Work of {author}"]
        subprocess.run(commit, check=True, env={**os.environ, **names})
    servers = {
        "git": {
            "command": str(SCRIPTS / "mcp-server-git"),
            "args": ["--repository", str(folder)],
        },
        "filesystem": {
            "command": str(SCRIPTS / "node"),
            "args": [str(FILESYSTEM), str(folder)],
        },
    }
    (tmp_path / "config.toml").write_text(POLICY)
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    return folder


ROLES = ("AUTHOR", "COMMITTER")


def environment(home: Path, runtime: str = "bubblewrap", **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(home),
        "MCP_BRIDGE_CONFIG": str(home / "config.toml"),
        "MCP_BRIDGE_RUNTIME": runtime,
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "MCP_BRIDGE_WARM": "0",
        # Sockets are there, whose paths have to be short.
        "XDG_RUNTIME_DIR": str(home / "run"),
        **more,
    }


@asynccontextmanager
async def bridge(home: Path, runtime: str = "bubblewrap", **more: str) -> AsyncIterator[Client]:
    environ = environment(home, runtime, **more)
    command = str(SCRIPTS / "mcp-code-bridge")
    parameters = StdioServerParameters(command=command, cwd=home, env=environ)
    with (home / "bridge.log").open("a") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            yield client


def program(example: str, *values: str) -> str:
    """Return an example with its arguments."""
    return f"import sys\nsys.argv[1:] = {list(values)}\n{(EXAMPLES / f'{example}.py').read_text()}"


async def run(client: Client, example: str, *values: str, **more: Any) -> CallToolResult:
    code = program(example, *values)
    result = await client.call_tool("run_python", {"code": code, **more})
    assert not result.is_error, result.content
    return result


def field(result: CallToolResult, name: str) -> Any:
    return record_of(result)[name]


async def test_the_bulk_edit_is_a_plan_first_and_changes_exactly_what_that_listed(
    tmp_path: Path, project: Path
) -> None:
    values = (str(project), "timeout_ms", "timeout")
    async with bridge(tmp_path) as client:
        planned = await run(client, "rename_setting", *values, mode="plan")
        plan = field(planned, "plan")
        assert [call["tool"] for call in plan["calls"]] == ["edit_file", "edit_file"]
        assert "timeout_ms = 30" in (project / "conf/one.toml").read_text()
        applied = await client.call_tool("run_python", {"apply": plan["id"]})
        assert not applied.is_error, applied.content
    assert (project / "conf/one.toml").read_text() == "timeout = 30\nname = 'one'\n"
    assert (project / "conf/two.toml").read_text() == "name = 'two'\n"
    assert (project / "three.toml").read_text() == "# timeout_ms is old\ntimeout=5\n"


async def test_the_join_counts_over_two_servers(tmp_path: Path, project: Path) -> None:
    values = (str(project), str(project / "teams.json"))
    async with bridge(tmp_path) as client:
        joined = await run(client, "commits_by_team", *values)
    assert field(joined, "stdout") == ["In no team: Eve"]
    assert field(joined, "result") == {"core": 2, "docs": 1, "no team": 1}


async def test_the_long_job_says_how_far_it_is(tmp_path: Path, project: Path) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    code = program("word_count", str(project))
    async with bridge(tmp_path) as client:
        counted = await client.call_tool("run_python", {"code": code}, progress_callback=hear)
    assert not counted.is_error, counted.content
    assert field(counted, "result")[0] == ["words", 132]
    amounts = [progress for progress, _, _ in told]
    assert amounts == sorted(set(amounts))
    shares = [progress / total for progress, total, _ in told if total]
    assert shares, told
    assert shares[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("word_count", "12 files, 198 words of four letters or more\n"),
        pytest.param("commits_by_team", "In no team: Eve", marks=pytest.mark.full),
        pytest.param("rename_setting", "2 of 3 files have timeout_ms", marks=pytest.mark.full),
        pytest.param("save_a_skill", "Work of Eve", marks=pytest.mark.full),
    ],
)
def test_examples_run_as_they_are_in_the_folder_at_hand(
    tmp_path: Path, project: Path, example: str, said: str
) -> None:
    done = subprocess.run(
        [SCRIPTS / "mcp-code-bridge", "run", EXAMPLES / f"{example}.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
        env=environment(tmp_path),
    )
    assert (done.returncode, said in done.stdout) == (0, True), (done.stdout, done.stderr)


async def test_the_skill_is_there_for_the_next_program(tmp_path: Path, project: Path) -> None:
    async with bridge(tmp_path) as client:
        await run(client, "save_a_skill", str(project))
        code = f"from skills import latest_changes\nawait latest_changes({str(project)!r}, 2)"
        used = await client.call_tool("run_python", {"code": code})
    assert not used.is_error, used.content
    assert field(used, "result") == ["Work of Eve", "Work of Ada"]


@pytest.mark.full
@pytest.mark.podman
async def test_the_report_comes_with_its_chart_and_its_table(
    tmp_path: Path, project: Path, data_image: str
) -> None:
    async with bridge(tmp_path, "podman", MCP_BRIDGE_IMAGE=data_image) as client:
        report = await run(client, "commit_chart", str(project), timeout=60)
    assert field(report, "stdout") == ["4 commits by 3 authors on 3 days"]
    assert "stderr" not in record_of(report)
    pictures = [block for block in report.content if block.type == "image"]
    assert [picture.mime_type for picture in pictures] == ["image/png"]
    assert [kept["name"] for kept in field(report, "artifacts")] == ["commits.csv"]
