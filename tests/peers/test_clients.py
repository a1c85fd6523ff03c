"""Clients that others wrote use the bridge, over stdio and HTTP."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.peers.rig import HERE, NODE, NPM, environment
from tests.png import write_png
from tests.waiting import PATIENCE_SECONDS, until_exists

BRIDGE = Path(sys.executable).with_name("mcp-code-bridge")
TOOLBOX = Path(__file__).parents[1] / "fakes" / "servers" / "toolbox.py"

PICTURE = base64.b64encode(write_png(2, 2, lambda x, y: (0, 0, 0))).decode()

PEERS = [
    ("mcp1", "mcp1.py"),
    pytest.param("fastmcp2", "fastmcp_client.py", marks=pytest.mark.full),
    pytest.param("fastmcp3", "fastmcp_client.py", marks=pytest.mark.full),
    pytest.param("fastmcp4", "fastmcp_client.py", marks=pytest.mark.full),
    pytest.param("pydantic_ai", "pydantic_ai_client.py", marks=pytest.mark.full),
    pytest.param("typescript", "1", marks=pytest.mark.full),
    pytest.param("typescript", "2", marks=pytest.mark.full),
    pytest.param("typescript", "2-auto", marks=pytest.mark.full),
]
"""Environments, and what runs in them."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user with one server."""
    server = {"command": sys.executable, "args": [str(TOOLBOX), "stdio"]}
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {"toolbox": server}}))
    return tmp_path


def _environ(home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "MCP_BRIDGE_WARM": "0"}
    return {**os.environ, **own, "MCP_BRIDGE_RUNTIME": "bubblewrap"}


@asynccontextmanager
async def _reachable(home: Path, transport: str) -> AsyncIterator[dict[str, Any]]:
    """Say how a client reaches the bridge."""
    if transport == "stdio":
        yield {"command": [str(BRIDGE)], "env": _environ(home), "cwd": str(home)}
        return
    command = [str(BRIDGE), "serve", "--http", "127.0.0.1:0", "--no-token"]
    async with await anyio.open_process(
        command, cwd=home, env=_environ(home), stdin=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        told = b""
        while b"/mcp\n" not in told:
            told += await process.stderr.receive()
        [url] = [word for word in told.decode().split() if word.endswith("/mcp")]
        yield {"url": url}
        process.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.full)])
@pytest.mark.parametrize(("peer", "program"), PEERS)
async def test_a_client_lists_calls_and_cancels(
    home: Path, peer: str, program: str, transport: str
) -> None:
    if peer == "typescript":
        # Beside its packages, where it finds them.
        command = [str(NODE), str(NPM / "typescript.mjs"), program]
    else:
        command = [str(environment(peer)), str(HERE / program)]
    started, cancelled = home / "started", home / "cancelled"
    programs = {
        "value": "print('hello'); (await mcp_toolbox.echo(n=6 * 7))['n']",
        "error": "print('before'); 1 / 0",
        "picture": f"import base64\ndisplay(Blob('image/png', base64.b64decode({PICTURE!r})))",
        "slow": f"await mcp_toolbox.slow(started={str(started)!r}, cancelled={str(cancelled)!r})",
    }
    with anyio.fail_after(PATIENCE_SECONDS):
        async with _reachable(home, transport) as way:
            task = {"programs": programs, "started": str(started), **way}
            done = await anyio.run_process([*command, json.dumps(task)], check=False)
            assert done.returncode == 0, done.stderr.decode()[-3000:]
            await until_exists(cancelled)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "run_python" in seen["tools"]
    for name in ("value", "after"):
        assert not seen[name]["failed"]
        assert "hello" in seen[name]["text"]
        assert "42" in seen[name]["text"]
        # pydantic-ai hands on values alone.
        record = seen[name]["record"]
        assert record["status"] == "success" if peer != "pydantic_ai" else record is None
    assert seen["error"]["failed"]
    assert "ZeroDivisionError" in seen["error"]["text"]
    assert "image" in seen["picture"]["kinds"]
