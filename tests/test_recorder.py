"""The server that other tests look at calls with: both generations do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.recorder_rig import Generation, recorded, recorder_entry, tools_recorded
from tests.waiting import until


@pytest.mark.parametrize(
    ("generation", "mode"), [("sdk", "2026-07-28"), ("sdk", "legacy"), ("raw", "legacy")]
)
async def test_a_recorder_does_as_its_tools_say_and_writes_down_each_call(
    tmp_path: Path, generation: Generation, mode: Any
) -> None:
    log = tmp_path / "log"
    entry = recorder_entry(log, generation=generation, notes={"a": "text of a"})
    parameters = StdioServerParameters(**entry)
    with anyio.fail_after(60):
        async with Client(stdio_client(parameters), mode=mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            read = await client.call_tool("read_note", {"topic": "a"})
            made = await client.call_tool("create", {"title": "t"})
            failed = await client.call_tool("fail", {})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "slow", {})
                await until(lambda: tools_recorded(log)[-1] == "slow")
                await client.call_tool("release", {})
            with pytest.raises(MCPError):
                await client.call_tool("refuse", {})
            await client.call_tool("redescribe", {"tool": "plain", "description": "new"})
            again = {tool.name: tool for tool in (await client.list_tools()).tools}
            resource = await client.read_resource("note:///a")
            prompt = await client.get_prompt("review", {"topic": "a"})
    annotations = tools["transfer"].annotations
    assert annotations is not None
    assert annotations.destructive_hint is True
    assert tools["plain"].annotations is None
    assert read.structured_content == {"from": "a", "text": "text of a"}
    assert made.structured_content == {"id": 1, "title": "t", "url": "https://example.org/1"}
    assert failed.is_error
    assert again["plain"].description == "new"
    assert "text of a" in str(resource.contents[0])
    assert "text of a" in str(prompt.messages[0].content)
    assert recorded(log) == [
        ("read_note", {"topic": "a"}),
        ("create", {"title": "t"}),
        ("fail", {}),
        ("slow", {}),
        ("release", {}),
        ("refuse", {}),
        ("redescribe", {"tool": "plain", "description": "new"}),
        ("resources/read", {"uri": "note:///a"}),
        ("prompts/get", {"name": "review", "arguments": {"topic": "a"}}),
    ]
