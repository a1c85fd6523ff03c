"""Servers in containers that ignore the end of their input: none outlives its bridge for long."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from bridge.runs.engine import ServerContainers
from bridge.settings import load
from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS
from tests.upstream.rig import SERVERS, Rig
from tests.waiting import until

ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("podman", "docker")]
CASES = [
    ("EOF", "{engine} run -i {rest}"),
    ("SIGTERM", "env A=b {engine} container run --rm -i {rest}"),
    ("SIGKILL", "sh -c|exec {engine} --log-level error run --rm -i {rest}"),
]
"""How a bridge ends, and the command line of its server; after `|` comes one word."""


def words(engine: str, line: str, mark: str) -> list[str]:
    """Return the command line of a container that only SIGKILL ends."""
    image = os.environ[f"MCP_TEST_IMAGE_{engine.upper()}"]
    rest = f"--label mark={mark} --network none -v {SERVERS}:/servers:ro {image}"
    rest += " python3 /servers/raw.py stubborn"
    head, bar, script = line.format(engine=engine, rest=rest).partition("|")
    return [*head.split(), *([script] if bar else [])]


def left(engine: str, mark: str) -> list[str]:
    command = [engine, "ps", "--all", "--quiet", "--filter", f"label=mark={mark}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def session(home: Path, command: list[str], how: str) -> Iterator[None]:
    """Start a bridge as a client does, call its server, and end the bridge in one of the ways."""
    servers = {"box": {"command": command[0], "args": command[1:]}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_RUNTIME": "bubblewrap"}
    environ |= {"MCP_BRIDGE_STATE_DIR": str(home / "state"), "MCP_BRIDGE_WARM": "0"}
    info = {"clientInfo": {"name": "test", "version": "1"}, "capabilities": {}}
    program = {"code": "print(await mcp_box.echo(text='hi'))", "servers": ["box"]}
    requests = [
        ("initialize", {"protocolVersion": "2025-06-18", **info}),
        ("tools/call", {"name": "run_python", "arguments": program}),
    ]
    with subprocess.Popen(
        [BRIDGE], cwd=home, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = ""
            for number, (method, params) in enumerate(requests):
                message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
                while f'"id":{number}' not in (line := process.stdout.readline().decode()):
                    assert line
            assert "hi" in line
            yield
        finally:
            if how == "EOF":
                process.stdin.close()
            else:
                process.send_signal(getattr(signal, how))
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short name: podman's socket is below it."""
    return tmp_path_factory.mktemp("c")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("how", "line"), CASES)
def test_a_container_of_a_server_ends_with_its_bridge_or_by_the_next(
    tmp_path: Path, engine: str, how: str, line: str
) -> None:
    mark = secrets.token_hex(8)
    with session(tmp_path, words(engine, line, mark), how):
        assert len(before := left(engine, mark)) == 1
    if how == "SIGKILL":
        assert left(engine, mark) == before
        with session(tmp_path, words(engine, line, mark), "EOF"):
            assert set(left(engine, mark)).isdisjoint(before)
    assert left(engine, mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_container_of_an_idle_server_is_removed(tmp_path: Path, engine: str) -> None:
    rig, mark = Rig(tmp_path), secrets.token_hex(8)
    spec = rig.spec(*words(engine, CASES[0][1], mark))
    async with rig.pool(spec, idle_seconds=0.1) as pool:
        pool.containers = ServerContainers(load({}, {**os.environ, "HOME": str(tmp_path)}))
        await pool.call_tool("server", "echo", {"text": "hi"})
        with anyio.fail_after(PATIENCE_SECONDS):
            await until(lambda: not left(engine, mark))
