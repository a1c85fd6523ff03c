"""Servers that others wrote, behind the bridge."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import TextContent

from bridge.model import ServerSpec, Source
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.peers.rig import HERE, NODE, NPM, environment
from tests.png import write_png
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until, until_exists

PICTURE = base64.b64encode(write_png(2, 2, lambda x, y: (0, 0, 0))).decode()

USE = f"""
import json
value = await mcp_peer.add(a=2, b=3)
try:
    await mcp_peer.fail()
except runtime.MCPError as error:
    said = str(error)
picture = await mcp_peer.picture(data={PICTURE!r})
names = [tool["tool"] for tool in await runtime.list_tools("peer")]
print(json.dumps([names, value["sum"], said, picture.mime_type, len(picture.data)]))
"""


def _spec(command: str | Path = "", *args: object, **fields: Any) -> ServerSpec:
    source = Source(client="Test", scope="user", path="/test.json", key="mcpServers.peer")
    spec = ServerSpec(
        name="peer",
        transport="stdio",
        source=source,
        command=str(command),
        args=tuple(map(str, args)),
    )
    return replace(spec, **fields)


@asynccontextmanager
async def _bridge(
    spec: ServerSpec, settings: Settings, backend: FakeBackend
) -> AsyncIterator[Client]:
    """Yield a client of a bridge with one server."""

    finder = ListFinder(spec)
    opened = engine_on(backend, settings, finder=finder)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with opened as engine, Client(build_server(engine), mode="legacy") as client:
            yield client


async def _run(client: Client, code: str) -> Any:
    """Return what a program prints as JSON."""
    result = await client.call_tool("run_python", {"code": code})
    text = "".join(block.text for block in result.content if isinstance(block, TextContent))
    assert not result.is_error, text
    return json.loads(text.splitlines()[0])


def fastmcp3() -> ServerSpec:
    return _spec(environment("fastmcp3"), HERE / "server.py")


def fastmcp4() -> ServerSpec:
    return _spec(environment("fastmcp4"), HERE / "server.py")


def typescript() -> ServerSpec:
    return _spec(NODE, NPM / "server.mjs")


async def _used(spec: ServerSpec, settings: Settings, backend: FakeBackend, tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    wait = f"await mcp_peer.slow(started={str(started)!r}, cancelled={str(cancelled)!r})"
    async with _bridge(spec, settings, backend) as client:
        names, total, said, kind, size = await _run(client, USE)
        assert sorted(names) == ["add", "fail", "picture", "slow"]
        assert total == 5
        assert "it broke" in said
        assert (kind, size) == ("image/png", len(base64.b64decode(PICTURE)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "run_python", {"code": wait})
            await until_exists(started)
            tasks.cancel_scope.cancel()
        await until_exists(cancelled)
        assert (await _run(client, USE))[1] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [fastmcp4, *(pytest.param(each, marks=pytest.mark.full) for each in (fastmcp3, typescript))],
)
async def test_a_server_is_listed_called_and_cancelled(
    make: Callable[[], ServerSpec], settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    await _used(make(), settings, backend, tmp_path)


@pytest.mark.full
async def test_a_server_of_the_older_sdk_over_event_streams_is_listed_called_and_cancelled(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    with reserved_port() as port:
        command = [str(environment("mcp1")), str(HERE / "server.py"), str(port)]
        async with await anyio.open_process(command, stdin=DEVNULL, stderr=DEVNULL) as process:
            try:
                await until(lambda: _answers(port))
                spec = _spec(transport="sse", url=f"http://127.0.0.1:{port}/sse")
                await _used(spec, settings, backend, tmp_path)
            finally:
                process.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
