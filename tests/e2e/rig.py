"""The installed bridge, started as a client starts it, on real engines and real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from tests.processes import processes
from tests.record import record_of
from tests.record import text_of as text_of

SCRIPTS = Path(sys.executable).parent
BRIDGE = SCRIPTS / "mcp-code-bridge"
REPOSITORY = Path(__file__).parents[2]
WORKSHOP = REPOSITORY / "tests" / "fakes" / "servers" / "workshop.py"

PATIENCE_SECONDS = 600.0
"""For one test or command, with all that it starts; it only ends what hangs."""

RUN_LABEL = "org.mcp-code-bridge.run"
"""On every container that the bridge makes."""
OWNER_LABEL = "org.mcp-code-bridge.owner"
"""The label with the process id of the bridge that made the container."""


@dataclass(frozen=True)
class User:
    """Somebody with a home directory, a project and MCP servers configured for Claude Code.

    Attributes:
        mark: In the environment of every server process, to find them by.
        bridges: The process ids of the bridges that were started.
    """

    home: Path
    project: Path
    engine: str
    background: str = "off"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    bridges: set[int] = field(default_factory=set)

    def configure(self) -> None:
        """Write what `claude mcp add` writes: servers of the user, and of the project."""
        user = {
            "git": self._server("mcp-server-git", "--repository", str(self.project)),
            "time": self._server("mcp-server-time", "--local-timezone", "UTC"),
        }
        (self.home / ".claude.json").write_text(json.dumps({"mcpServers": user}))
        shop = {"command": sys.executable, "args": [str(WORKSHOP)], "env": {"MARK": self.mark}}
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"workshop": shop}}))
        git = [
            "git",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-C",
            str(self.project),
        ]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first light"], check=True)

    def _server(self, command: str, *arguments: str) -> dict[str, Any]:
        return {
            "command": str(SCRIPTS / command),
            "args": list(arguments),
            "env": {"MARK": self.mark},
        }

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment that a client of this user passes on."""
        return {
            **os.environ,
            "HOME": str(self.home),
            "MCP_BRIDGE_BACKGROUND": self.background,
            "MCP_BRIDGE_RUNTIME": self.engine,
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            # As of who has approved what the project defines.
            "MCP_BRIDGE_PROJECT_SERVERS": "all",
            **more,
        }

    @asynccontextmanager
    async def client(self, mode: Any = "auto", **environ: str) -> AsyncIterator[Client]:
        """Start the bridge as a client does, and close it again."""
        parameters = StdioServerParameters(
            command=str(BRIDGE), cwd=self.project, env=self.environ(**environ)
        )
        with (self.home / "bridge.log").open("a") as log:
            async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
                self.bridges.update(processes(variable=f"HOME={self.home}"))
                yield client

    def command(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(BRIDGE), *arguments]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env=self.environ(),
        ) as process:
            self.bridges.add(process.pid)
            try:
                out, err = process.communicate(stdin, PATIENCE_SECONDS)
            finally:
                process.kill()
            return subprocess.CompletedProcess(command, process.returncode, out, err)

    def background_bridges(self) -> list[int]:
        """Return the ids of this user's background bridges."""
        return list(processes("bridge.background", variable=f"HOME={self.home}"))

    def end_background(self) -> None:
        """End the background bridges, with their servers and sandboxes."""
        if self.background == "on":
            done = self.command("background", "stop")
            assert done.returncode == 0, done.stderr
            assert not self.background_bridges()

    def server_processes(self) -> list[str]:
        """Return the command lines of this user's servers and of all that they started."""
        return list(processes(variable=f"MARK={self.mark}").values())

    def containers(self) -> list[str]:
        """Return the ids of the containers, dead or alive, of the bridges of this user."""
        return [found for found, of in _containers(self.engine).items() if of in self.bridges]

    def servers_running(self) -> int:
        """Return how many server processes there are, without what they started."""
        commands = self.server_processes()
        return sum("mcp-server-" in command or WORKSHOP.name in command for command in commands)


def containers(engine: str, owner: int) -> list[str]:
    """Return the ids of the containers, dead or alive, of the bridge with this process id."""
    return [found for found, of in _containers(engine).items() if of == owner]


def _containers(engine: str) -> dict[str, int]:
    """Return the ids of all bridges' containers, and the process ids of the bridges.

    Tests of others may have some of them: those of one bridge or user can be counted.
    """
    if engine == "docker":
        client = docker.APIClient(base_url=os.environ["DOCKER_HOST"])
        try:
            listed = client.containers(all=True, filters={"label": RUN_LABEL})
        finally:
            client.close()
    else:
        command = ["podman", "ps", "--all", "--filter", f"label={RUN_LABEL}", "--format", "json"]
        listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {each["Id"]: int(each["Labels"][OWNER_LABEL]) for each in listed}


def document_of(result: CallToolResult) -> dict[str, Any]:
    return record_of(result)


def engines() -> Sequence[str]:
    chosen = os.environ.get("MCP_BRIDGE_TEST_ENGINES", "podman,docker")
    return [name for name in chosen.split(",") if name in ("podman", "docker")]
