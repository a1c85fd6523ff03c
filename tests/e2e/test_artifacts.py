"""What a run leaves, from a real sandbox to a client that lists, reads and is told of it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.abc
from mcp import Client
from mcp.types import ResourceLink

from tests.e2e.rig import PATIENCE_SECONDS, User, document_of

PROGRAM = """
from pathlib import Path
for number in range(1, 20_001):
    print("line", number)
Path("/workspace/out/table.csv").write_text("a,b\\n1,2\\n")
"""


async def test_a_client_lists_and_reads_what_a_run_left_and_the_command_line_has_it_too(
    user: User,
) -> None:
    """It is there when the bridge that kept it is not any more, until it is removed."""
    told = anyio.Event()
    async with user.client("2026-07-28") as client, anyio.create_task_group() as tasks:
        await tasks.start(_listen, client, told)
        await client.list_resources()
        result = await client.call_tool("run_python", {"code": PROGRAM})
        run_id = document_of(result)["runId"]
        with anyio.fail_after(PATIENCE_SECONDS):
            await told.wait()
        links = {block.name: block for block in result.content if isinstance(block, ResourceLink)}
        # The text says how the rest of the output is read.
        assert links.keys() == {"table.csv"}
        listed = {resource.uri: resource for resource in (await client.list_resources()).resources}
        assert listed[links["table.csv"].uri].mime_type == "text/csv"
        output = f"bridge://runs/{run_id}/stdout"
        assert output in listed
        assert await _text(client, links["table.csv"].uri) == "a,b\n1,2\n"
        assert await _text(client, f"{output}?lines=10001-10002") == "line 10001\nline 10002\n"
        assert (await _text(client, output)).count("\n") == 20_000
        tasks.cancel_scope.cancel()
    shown = json.loads(user.command("artifacts", "list", "--json").stdout)
    assert {one["runId"] for one in shown} == {run_id}
    assert user.command("artifacts", "get", links["table.csv"].uri).stdout == "a,b\n1,2\n"
    assert user.command("artifacts", "rm", "--run", run_id[:8]).returncode == 0
    assert json.loads(user.command("artifacts", "list", "--json").stdout) == []


async def _listen(
    client: Client, told: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    async with client.listen(resources_list_changed=True) as events:
        task_status.started()
        async for _ in events:
            told.set()


async def _text(client: Client, uri: str) -> str:
    first: Any = (await client.read_resource(uri)).contents[0]
    return str(first.text)
