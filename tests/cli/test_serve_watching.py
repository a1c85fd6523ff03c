"""A configuration that is edited while the bridge serves, as installed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests import record
from tests.engine_rig import WORKSHOP
from tests.waiting import until

BRIDGE = Path(sys.executable).with_name("mcp-code-bridge")

LONG_RUN = "print(await mcp_stays.meet(count=2, party='hall'))"
START_BOTH = "print(await mcp_changes.add(a=1, b=1), await mcp_stays.add(a=1, b=1))"


def configure(project: Path, **marks: str) -> None:
    """Write a configuration of workshops, each with something of its own in its environment."""
    servers = {
        name: {"command": sys.executable, "args": [str(WORKSHOP)], "env": {"MARK": mark}}
        for name, mark in marks.items()
    }
    fresh = project / "new"
    fresh.write_text(json.dumps({"mcpServers": servers}))
    # As editors do it: the file that is watched is another one afterwards.
    fresh.replace(project / ".claude.json")


def processes(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            lines = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if f"MARK={mark}".encode() in lines:
            found.append(int(entry.name))
    return found


async def text_of(client: Client, code: str) -> str:
    result = await client.call_tool("run_python", {"code": code, "timeout": 60})
    return record.text_of(result)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc, and runs in bubblewrap")
async def test_an_edit_is_told_to_the_client_and_disturbs_nothing_else(
    tmp_path: Path, mode: Any
) -> None:
    """[bubblewrap] A server that stays goes on with its run, one that changed is started anew."""
    stays, first, second = (f"{tmp_path}-{name}" for name in ("stays", "first", "second"))
    configure(tmp_path, stays=stays, changes=first)
    environ = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
        "MCP_BRIDGE_WARM": "0",
    }
    news = anyio.Event()

    async def handle(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            news.set()

    async def listen(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                news.set()

    parameters = StdioServerParameters(command=str(BRIDGE), cwd=tmp_path, env=environ)
    with anyio.fail_after(120), (tmp_path / "log").open("w") as log:
        async with (
            Client(
                stdio_client(parameters, errlog=log), mode=mode, message_handler=handle
            ) as client,
            anyio.create_task_group() as tasks,
        ):
            if mode != "legacy":
                tasks.start_soon(listen, client)
            said: list[str] = []

            async def long_run() -> None:
                said.append(await text_of(client, LONG_RUN))

            assert await text_of(client, START_BOTH), log
            assert "mcp_third" not in ((await client.list_tools()).tools[0].description or "")
            before = processes(stays), processes(first)
            assert all(before)
            async with anyio.create_task_group() as runs:
                runs.start_soon(long_run)
                configure(tmp_path, stays=stays, changes=second, third=second)
                await news.wait()
                assert "mcp_third" in ((await client.list_tools()).tools[0].description or "")
                await until(lambda: not processes(first))
                assert processes(stays) == before[0]
                # The run under way waits for this one, in a server's memory.
                said.append(await text_of(client, LONG_RUN))
            assert len(said) == 2
            assert "rror" not in "".join(said)
            assert "2" in await text_of(client, START_BOTH)
            assert processes(second)
            tasks.cancel_scope.cancel()
