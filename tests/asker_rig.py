"""A server with questions, over stdio and HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import CallToolResult

from bridge.model import ServerSpec, Source
from tests.record import record_of
from tests.record import text_of as text_of

ASKER = Path(__file__).parent / "fakes" / "servers" / "toolbox.py"

_SOURCE = Source(client="Test", scope="user", path="/test.json", key="mcpServers.asker")


def asker() -> ServerSpec:
    return ServerSpec(
        name="asker",
        transport="stdio",
        source=_SOURCE,
        command=sys.executable,
        args=(str(ASKER), "stdio"),
    )


@contextmanager
def remote_asker(kind: str) -> Iterator[ServerSpec]:
    """Run it as a web server: "http" is the newest protocol, "older-http" the one before."""
    command = [sys.executable, str(ASKER), kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
            yield ServerSpec(name="asker", transport="http", source=_SOURCE, url=url)
        finally:
            process.kill()


def value_of(result: CallToolResult) -> Any:
    assert result.is_error is False, text_of(result)
    return record_of(result)["result"]


async def call(client: Client, code: str) -> CallToolResult:
    with anyio.fail_after(60):
        return await client.call_tool("run_python", {"code": code})
