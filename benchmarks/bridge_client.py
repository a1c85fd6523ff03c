"""The bridge as a client has it: a process of its own, spoken to over stdio by the SDK's client.

Owns the starting of `mcp-code-bridge serve` in a home of its own, and the calls. No server or
setting of the user who measures has a part in it.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from benchmarks.bench import Bench, BenchmarkError, without_bridge_settings
from benchmarks.engines import Engine
from benchmarks.processes import child_with

BRIDGE = (str(Path(sys.executable).parent / "mcp-code-bridge"), "serve")

NOTHING = "1+1"
"""The program whose running is all overhead."""

Servers = Mapping[str, Sequence[str]]
"""Command line by name."""

Mode = Literal["auto", "legacy"]

DIRECT_MODE: Mode = "legacy"
"""Of the client that calls a server directly: what the bridge speaks to servers on stdio, and the
quicker of the two."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a run and its time in milliseconds."""

    ms: float
    fields: Mapping[str, Any]

    @property
    def result(self) -> Any:
        """The value of the program's last expression."""
        return self.fields.get("result")


class Bridge:
    """A bridge under way."""

    def __init__(self, client: Client, pid: int, home: Path) -> None:
        self.client = client
        self.pid = pid
        self.home = home

    async def run(
        self, code: str = NOTHING, *, timeout: float | None = None, session: str = ""
    ) -> Answer:
        """Run a program, in a session if one is named, and return its result.

        Raises:
            BenchmarkError: The run did not succeed.
        """
        arguments: dict[str, Any] = {"code": code}
        if timeout is not None:
            arguments["timeout"] = timeout
        if session:
            arguments["session"] = session
        started = time.perf_counter()
        result = await self.client.call_tool("run_python", arguments)
        taken = (time.perf_counter() - started) * 1000
        fields = (result.meta or {}).get("mcp-code-bridge/result", {})
        if result.is_error:
            message = f"A run failed: {fields.get('summary')} {str(fields.get('error', ''))[-300:]}"
            raise BenchmarkError(message.strip())
        return Answer(ms=taken, fields=fields)


def configure(home: Path, servers: Servers) -> None:
    """Write the home of a user with these servers."""
    for name in ("project", "run", "state"):
        (home / name).mkdir(mode=0o700)
    # A project is a repository as a rule. Without one the bridge looks for one in every directory
    # above, where here others come and go.
    (home / "project" / ".git").mkdir()
    entries = {
        name: {"command": command, "args": arguments}
        for name, (command, *arguments) in servers.items()
    }
    (home / "servers.json").write_text(json.dumps({"mcpServers": entries}))


def environment(home: Path, engine: Engine, more: Mapping[str, str]) -> dict[str, str]:
    """Return what the bridge's process is started with."""
    inherited = without_bridge_settings()
    data = inherited.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return {
        **inherited,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        # An ordinary user's podman keeps its images here.
        "XDG_DATA_HOME": data,
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "MCP_SERVERS_CONFIG": str(home / "servers.json"),
        "MCP_BRIDGE_LOG_LEVEL": "WARNING",
        # The process that a client starts is then the bridge.
        "MCP_BRIDGE_BACKGROUND": "off",
        **engine.environ,
        **more,
    }


@asynccontextmanager
async def open_bridge(
    bench: Bench,
    engine: Engine,
    *,
    servers: Servers | None = None,
    home: Path | None = None,
    command: Sequence[str] = BRIDGE,
    **settings: str,
) -> AsyncIterator[Bridge]:
    """Start a bridge on an engine; leaving ends it and what it started.

    Args:
        servers: What is configured.
        home: One that is configured already, instead of a new one with `servers`.
        command: What to start instead of the installed bridge.
        settings: Environment variables, on top of what the engine asks for.
    """
    if home is None:
        home = bench.place()
        configure(home, servers or {})
    mark = uuid.uuid4().hex
    parameters = StdioServerParameters(
        command=command[0],
        args=list(command[1:]),
        cwd=home / "project",
        env=environment(home, engine, {**settings, "BENCHMARK_MARK": mark}),
    )
    with (home / "bridge.log").open("a") as log:
        try:
            async with Client(stdio_client(parameters, errlog=log)) as client:
                yield Bridge(client, child_with(mark), home)
        except Exception:
            _say_log(home / "bridge.log")
            raise


def _say_log(path: Path) -> None:
    """Show the end of the bridge's log, which goes away with its home."""
    tail = path.read_text(errors="replace").splitlines()[-10:]
    for line in tail:
        print(f"    bridge: {line}", file=sys.stderr)


@asynccontextmanager
async def open_direct(command: Sequence[str], mode: Mode = DIRECT_MODE) -> AsyncIterator[Client]:
    """Connect the SDK's client to a server with nothing in between."""
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    async with Client(stdio_client(parameters), mode=mode) as client:
        yield client


async def timed_call(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> float:
    """Call a tool and return the milliseconds that it took.

    Raises:
        BenchmarkError: It answered with an error.
    """
    started = time.perf_counter()
    result = await client.call_tool(tool, arguments or {})
    taken = (time.perf_counter() - started) * 1000
    if result.is_error:
        message = f"The tool {tool} answered with an error."
        raise BenchmarkError(message)
    return taken
