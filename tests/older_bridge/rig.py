"""A user with configuration files, and the bridge as that user's client sees it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult

from bridge.model import RunRequest, RunResult
from bridge.runs import Engine, open_engine
from bridge.settings import Settings, load
from tests.fakes.backend import FakeBackend
from tests.record import record_of

TESTS = Path(__file__).parents[1]
SERVERS = TESTS / "fakes" / "servers"
HERE = Path(__file__).parent

PATIENCE_SECONDS = 120.0
"""How long a test waits for one run; long, since the machine may be busy."""

C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
"""What desktop clients often start their servers with: no locale at all."""


@dataclass(frozen=True)
class Place:
    """A home directory and a project in it, with MCP servers configured for the project."""

    home: Path

    @property
    def project(self) -> Path:
        """The bridge's working directory."""
        return self.home / "project"

    @property
    def pid_file(self) -> Path:
        """Where every server on `raw.py` writes its process id when it starts."""
        return self.home / "pids"

    def pids(self) -> list[int]:
        """Return the process ids of all servers on `raw.py` that were ever started."""
        return [int(pid) for pid in self.pid_file.read_text().split()]

    def raw(self, mode: str = "", **fields: Any) -> dict[str, Any]:
        """Return an entry for the server that misbehaves on request."""
        environment = {"PID_FILE": str(self.pid_file)}
        return entry(SERVERS / "raw.py", *filter(None, [mode]), env=environment, **fields)

    def configure(self, servers: dict[str, Any], name: str = "project/.mcp.json") -> None:
        """Write a configuration file, in place of what it said before."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"mcpServers": servers}))

    def environ(self, **more: str) -> dict[str, str]:
        """Return an environment in which nothing of this machine's user is found."""
        state = {"MCP_BRIDGE_STATE_DIR": str(self.home / "state"), "MCP_BRIDGE_WARM": "0"}
        state["MCP_BRIDGE_PROJECT_SERVERS"] = "all"
        return {**os.environ, "HOME": str(self.home), **state, **more}

    @asynccontextmanager
    async def client(self, mode: Any = "auto", **environ: str) -> AsyncIterator[Client]:
        """Start the bridge on the fake backend over real stdio, and close it again."""
        parameters = StdioServerParameters(
            command=sys.executable,
            args=[str(HERE / "serve.py")],
            cwd=self.project,
            env=self.environ(PYTHONPATH=str(TESTS.parent), **C_LOCALE, **environ),
        )
        with (self.home / "bridge.log").open("a") as log:
            async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
                yield client

    @asynccontextmanager
    async def engine(self, backend: FakeBackend | None = None) -> AsyncIterator[Engine]:
        """Open an engine in this process, on the fake backend and on these files."""
        chosen = backend or FakeBackend()

        async def choose(_: Settings) -> FakeBackend:
            return chosen

        settings = load({}, self.environ())
        async with open_engine(settings, choose_backend=choose, cwd=str(self.project)) as engine:
            yield engine
        assert chosen.live == set()


def entry(*command: str | Path, **fields: Any) -> dict[str, Any]:
    """Return a server's entry in a configuration file: a Python program and its arguments."""
    return {"command": sys.executable, "args": [str(word) for word in command], **fields}


def new_place(home: Path) -> Place:
    """Make the directories of a place that has no servers yet."""
    place = Place(home)
    place.project.mkdir(parents=True)
    return place


def usual_servers(place: Place) -> dict[str, Any]:
    """Return the entries most tests use."""
    return {
        "work-shop": entry(SERVERS / "workshop.py", description="A workshop"),
        "raw": place.raw(),
        "broken": {"command": "/no/such/command"},
        "crowd": entry(HERE / "crowd.py", "many"),
        '{code}"""': entry(HERE / "crowd.py", "hostile", description="__CODE_LITERAL__ {code}"),
    }


async def call(client: Client, code: str, **arguments: Any) -> CallToolResult:
    """Run a program through the client."""
    with anyio.fail_after(PATIENCE_SECONDS):
        return await client.call_tool("run_python", {"code": code, **arguments})


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    """Run a program through the client and return the record."""
    return record_of(await call(client, code, **arguments))


async def value_of(client: Client, code: str, **arguments: Any) -> Any:
    """Run a program that succeeds and return the value of its last expression."""
    document = await run(client, code, **arguments)
    assert document["status"] == "success", document
    return document["result"]


async def run_on(engine: Engine, code: str, servers: Sequence[str] | None = None) -> RunResult:
    """Run a program on an engine in this process."""
    request = RunRequest(code=code, servers=None if servers is None else tuple(servers))
    with anyio.fail_after(PATIENCE_SECONDS):
        return await engine.run(request)


def text_of(result: CallToolResult) -> str:
    """Return a result's text."""
    return "".join(getattr(block, "text", "") for block in result.content)
