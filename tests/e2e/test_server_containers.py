"""Servers in containers that ignore the end of their input: none outlives its bridge for long."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.runs.opening import containers_of_servers
from bridge.settings import load
from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS
from tests.upstream.rig import SERVERS, Rig, wait_until

ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("podman", "docker")]
LINES = {
    "direct": ("{engine}", "run", "-i", "{rest}"),
    "env": ("env", "A=b", "{engine}", "container", "run", "--rm", "-i", "{rest}"),
    "shell": ("sh", "-c", "exec {engine} --log-level error run --rm -i {rest}"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def line(engine: str, shape: str, mark: str) -> tuple[str, ...]:
    """Return the command line of a container that only SIGKILL ends."""
    image = os.environ[f"MCP_TEST_IMAGE_{engine.upper()}"]
    rest = f"--label mark={mark} --network none -v {SERVERS}:/servers:ro {image}"
    rest += " python3 /servers/raw.py stubborn"
    words: list[str] = []
    for word in LINES[shape]:
        text = word.format(engine=engine, rest=rest)
        words += rest.split() if word == "{rest}" else [text]
    return tuple(words)


def left(engine: str, mark: str) -> list[str]:
    """Return the containers with a mark, dead or alive."""
    command = [engine, "ps", "--all", "--quiet", "--filter", f"label=mark={mark}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


class Session:
    """A bridge that a client has started over stdio."""

    def __init__(self, home: Path, command: tuple[str, ...]) -> None:
        servers = {"box": {"command": command[0], "args": command[1:]}}
        (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
        environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_RUNTIME": "bubblewrap"}
        environ |= {"MCP_BRIDGE_STATE_DIR": str(home / "state"), "MCP_BRIDGE_WARM": "0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([BRIDGE], cwd=home, env=environ, **pipes)
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t"}}
        info["clientInfo"] = {"name": "test", "version": "1"}
        self.ask("initialize", info)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its response."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        for text in self.process.stdout:
            response: dict[str, Any] = json.loads(text)
            if response.get("id") == 1:
                return response
        raise AssertionError(method)

    def call(self) -> str:
        """Call the server from a program, and return what the client receives."""
        arguments = {"code": "print(await mcp_box.echo(text='hi'))", "servers": ["box"]}
        return str(self.ask("tools/call", {"name": "run_python", "arguments": arguments}))

    def end(self, how: str) -> None:
        """End the bridge, and wait until it has ended."""
        if how == "EOF":
            assert self.process.stdin is not None
            self.process.stdin.close()
        else:
            self.process.send_signal(getattr(signal, how))
        with self.process:
            self.process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("how", ["EOF", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("shape", LINES)
def test_a_container_of_a_server_ends_with_its_bridge_or_by_the_next(
    tmp_path: Path, engine: str, shape: str, how: str
) -> None:
    mark = secrets.token_hex(8)
    command = line(engine, shape, mark)
    session = Session(tmp_path, command)
    try:
        assert "hi" in session.call()
        assert len(left(engine, mark)) == 1
    finally:
        session.end(how)
    if how == "SIGKILL":
        assert len(before := left(engine, mark)) == 1
        session = Session(tmp_path, command)
        try:
            assert "hi" in session.call()
            assert set(left(engine, mark)).isdisjoint(before)
        finally:
            session.end("EOF")
    assert left(engine, mark) == []


async def test_a_container_of_an_idle_server_is_removed(tmp_path: Path, engine: str) -> None:
    rig, mark = Rig(tmp_path), secrets.token_hex(8)
    containers = containers_of_servers(load({}, {**os.environ, "HOME": str(tmp_path)}))
    spec = rig.spec(*line(engine, "direct", mark))
    async with rig.pool(spec, containers=containers, idle_seconds=0.1) as pool:
        await pool.call_tool("server", "echo", {"text": "hi"})
        with anyio.fail_after(PATIENCE_SECONDS):
            await wait_until(lambda: not left(engine, mark))
