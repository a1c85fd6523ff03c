"""Executes each line of "Coming from another bridge"."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp import Client

from bridge.server.app import build_server
from tests.docs.examples import SCRIPTS
from tests.engine_rig import ListFinder, engine_on, settings_in, workshop
from tests.fakes.backend import FakeBackend

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-another-bridge.md"
OLDER = {
    *("MCP_BRIDGE_IMAGE", "MCP_BRIDGE_RUNTIME", "MCP_BRIDGE_TIMEOUT", "MCP_BRIDGE_MAX_TIMEOUT"),
    *("MCP_BRIDGE_MEMORY", "MCP_BRIDGE_PIDS", "MCP_BRIDGE_CPUS", "MCP_BRIDGE_CONTAINER_USER"),
    *("MCP_BRIDGE_RUNTIME_IDLE_TIMEOUT", "MCP_BRIDGE_ALLOW_SELF_SERVER", "MCP_BRIDGE_STATE_DIR"),
    *("MCP_BRIDGE_OUTPUT_MODE", "MCP_BRIDGE_LOG_LEVEL", "MCP_SERVERS_CONFIG"),
}


def _rows(heading: str) -> Iterator[list[str]]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
        yield line.split(" | ")


PROGRAMS = {name.strip("`"): rest for name, *rest in _rows("Programs and replies")}
VARIABLES = {name.strip("`"): rest for name, *rest in _rows("Variables")}


@pytest.mark.parametrize("what", PROGRAMS)
async def test_a_program_is_answered_as_its_line_says(tmp_path: Path, what: str) -> None:
    _, _, program, written = PROGRAMS[what]
    error, reply = re.fullmatch(r"(Error )?`+(.*?)`+", written).groups()  # type: ignore[union-attr]
    settings = settings_in(tmp_path)
    code = program.strip("`").replace("; ", "\n")
    async with (
        engine_on(FakeBackend(), settings, finder=ListFinder(workshop())) as engine,
        Client(build_server(engine, principal="example")) as client,
    ):
        with anyio.fail_after(60):
            result = await client.call_tool("run_python", {"code": code})
    text = "".join(getattr(block, "text", "") for block in result.content)
    text = re.sub(r"\n+\[run [0-9a-f]{8}\]$", "", text).rstrip("\n").replace("\n", "⏎")
    assert result.is_error == bool(error), text
    assert (reply in text) if error else (reply == text), text
    assert "bridge/" not in text


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(name, marks=[pytest.mark.podman] if name == "MCP_BRIDGE_RUNTIME" else [])
        for name in VARIABLES
    ],
)
def test_a_value_of_an_older_variable_starts_a_run(tmp_path: Path, variable: str) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {}}')
    value, here = VARIABLES[variable]
    done = subprocess.run(
        [SCRIPTS / "mcp-code-bridge", "run", "-c", "print(6 * 7)"],
        env={
            **{name: text for name, text in os.environ.items() if name not in OLDER},
            **{"HOME": str(tmp_path), "MCP_BRIDGE_RUNTIME": "bubblewrap"},
            "MCP_BRIDGE_IMAGE": os.environ.get("MCP_TEST_IMAGE_PODMAN", ""),
            variable: value.strip("`"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "42"), done.stderr
    assert (f"warning: {variable}: " in done.stderr) == ("with a warning" in here)


def test_the_page_has_every_older_variable() -> None:
    assert VARIABLES.keys() == OLDER
