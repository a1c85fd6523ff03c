"""Golden runs: what a model and a client get for the programs of cases.toml, and the description.

With `UPDATE_FROZEN=1` the test writes runs.json instead of comparing with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from bridge.server.content import RECORD_KEY
from bridge.text import count_tokens
from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, SCRIPTS, WORKSHOP
from tests.recorder_rig import recorder_entry

HERE = Path(__file__).parent
GOLDEN = HERE / "runs.json"
CASES: list[dict[str, Any]] = tomllib.loads((HERE / "cases.toml").read_text())["case"]

MASKS = {
    r"\b[0-9a-f]{40}\b": "COMMIT",
    r"\b[0-9a-f]{8,64}\b": "ID",
    r"\b\d+(\.\d+)? ?(ms|MiB|KiB)\b": "N \\2",
    r"\b\d+\.\d+ s\b": "N s",
    r"Python 3\.\d+": "Python 3",
    r"(?m)^ *[~^]+ *\n": "",
}
"""What differs from run to run, or from one Python to the next."""

MAX_SHOWN = 2_000
"""Characters of a text in the file; longer ones are compared by their digest."""

GIT = (("NAME", "t"), ("EMAIL", "t@example.org"), ("DATE", "2020-01-02T03:04:05+0000"))
TOKEN = {"API_TOKEN": "tok-Vq83nTz0pLw5"}

MEASURED = {"usage", "isolation", "codeMs", "callsMs", "waitingMs", "durationMs", "seconds"}
"""Fields of the record with measurements, some absent if 0, or with facts of the machine."""


def mask(value: Any, home: Path) -> Any:
    """Return a part of a result without IDs, times and paths."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in MEASURED}
        return {key: mask(item, home) for key, item in kept.items()}
    if isinstance(value, list):
        return [mask(item, home) for item in value]
    if isinstance(value, str):
        value = value.replace(str(home), "HOME")
        for pattern, replacement in MASKS.items():
            value = re.sub(pattern, replacement, value)
        if len(value) > MAX_SHOWN:
            digest = hashlib.sha256(value.encode()).hexdigest()
            value = f"{value[:200]} ... {len(value)} characters, sha256 {digest}"
    return value


def write_configuration(home: Path) -> Path:
    """Write a repository and a configuration of three servers; return the repository."""
    project = home / "project"
    project.mkdir()
    (home / "run").mkdir(mode=0o700)
    same = {f"GIT_{role}_{key}": text for role in ("AUTHOR", "COMMITTER") for key, text in GIT}
    git = ["git", "-C", str(project)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, **same})
    servers = {
        "workshop": {"command": sys.executable, "args": [str(WORKSHOP)]},
        "tracker": recorder_entry(home / "calls", notes={"1": "a note"}, env=TOKEN),
        "git": {"command": str(SCRIPTS / "mcp-server-git"), "args": []},
    }
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    shutil.copy(HERE / "policy.toml", home / "config.toml")
    return project


async def call(client: Client, case: dict[str, Any], home: Path) -> dict[str, Any]:
    given = {key: value for key, value in case.items() if key not in ("name", "tool")}
    if "code" in given:
        given["code"] = given["code"].replace("REPOSITORY", repr(str(home / "project")))
    try:
        result = await client.call_tool(case.get("tool", "run_python"), given)
    except MCPError as error:
        return {"refused": mask(str(error), home)}
    record = (result.meta or {}).get(RECORD_KEY, result.structured_content)
    kinds = [block.type for block in result.content]
    text = "".join(getattr(block, "text", "") for block in result.content)
    got = {"text": text, "kinds": kinds, "record": record}
    return {key: mask(value, home) for key, value in got.items()}


async def all_runs(home: Path) -> dict[str, Any]:
    environ = {
        **os.environ,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "MCP_BRIDGE_CONFIG": str(home / "config.toml"),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
    }
    parameters = StdioServerParameters(
        command=str(BRIDGE), cwd=write_configuration(home), env=environ
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(PATIENCE_SECONDS))
        log = stack.enter_context((home / "bridge.log").open("w"))
        client = await stack.enter_async_context(Client(stdio_client(parameters, errlog=log)))
        found = {case["name"]: await call(client, case, home) for case in CASES}
        tools = (await client.list_tools()).tools
    text = {tool.name: tool.model_dump_json(exclude_none=True) for tool in tools}
    found["tokens"] = {name: count_tokens(said) for name, said in text.items()}
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


@pytest.fixture(scope="module")
async def runs() -> AsyncIterator[dict[str, Any]]:
    """The results of all cases from one bridge on bubblewrap."""
    # Of one length, since results count bytes.
    with tempfile.TemporaryDirectory(prefix="mcb-frozen-", dir="/tmp") as directory:
        yield await all_runs(Path(directory))


@pytest.mark.parametrize("name", [*(case["name"] for case in CASES), "tokens"])
async def test_run_gives_what_it_gave(runs: dict[str, Any], name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert runs[name] == golden[name]
