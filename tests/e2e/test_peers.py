"""The bridge against a client that others wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, REPOSITORY, SCRIPTS, User, engines

INSPECTOR = REPOSITORY / "tests" / "node" / "node_modules" / ".bin" / "mcp-inspector"
NODE = SCRIPTS / "node"

pytestmark = pytest.mark.node

PASSED_ON = (
    "HOME",
    "MCP_BRIDGE_BACKGROUND",
    "MCP_BRIDGE_RUNTIME",
    "DOCKER_HOST",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)


@pytest.fixture(
    params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()[:1]]
)
def engine_name(request: pytest.FixtureRequest) -> str:
    """One engine: what these programs see of the bridge is the same on all, and they are slow."""
    name: str = request.param
    return name


async def _node(user: User, *command: str | Path) -> tuple[int, str]:
    """Run a program with the Node of the virtual environment first on the path."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    done = await anyio.run_process(
        [str(word) for word in command],
        check=False,
        cwd=user.project,
        env=user.environ(PATH=path, NO_COLOR="1"),
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.slow
async def test_the_inspector_lists_and_calls(user: User) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        # It hands on only what it is told to of its environment.
        environ = user.environ()
        passed = [f"{name}={environ[name]}" for name in PASSED_ON if name in environ]
        options = [word for pair in passed for word in ("-e", pair)]
        inspector: list[str | Path] = [NODE, INSPECTOR, "--cli", BRIDGE, *options]
        status, text = await _node(user, *inspector, "--method", "tools/list")
        assert status == 0, text
        assert '"name": "run_python"' in text
        call = ["--method", "tools/call", "--tool-name", "run_python", "--tool-arg"]
        status, text = await _node(user, *inspector, *call, "code=print(6*7)")
        assert status == 0, text
        assert "42\\n" in text
