"""A server with the tools of `tools.json`, shaped like a code host's. Stdio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

Context = ServerRequestContext[Any]

TOOLS = json.loads((Path(__file__).parent / "tools.json").read_text())

ISSUE = {"number": 7, "title": "It is slow", "state": "open", "user": {"login": "somebody"}}
COMMITS = [{"sha": "abc", "message": "One"}, {"sha": "def", "message": "Two"}]


def answer(tool: str, arguments: dict[str, Any]) -> CallToolResult:
    if tool == "search_issues":
        found = {"total_count": 1, "items": [{"number": 7, "title": "It is slow"}]}
        return CallToolResult(
            content=[TextContent(text=json.dumps(found))], structured_content=found
        )
    if tool == "get_file_contents":
        if arguments["path"] == "missing.md":
            return CallToolResult(content=[TextContent(text="no such file")], is_error=True)
        return CallToolResult(content=[TextContent(text="# Read me")])
    documents: dict[str, Any] = {
        "get_issue": ISSUE,
        "create_issue": ISSUE,
        "list_commits": COMMITS,
        "get_me": {"login": "somebody"},
    }
    return CallToolResult(content=[TextContent(text=json.dumps(documents[tool]))])


async def on_list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[Tool.model_validate(tool) for tool in TOOLS])


async def on_call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    return answer(params.name, params.arguments or {})


async def main() -> None:
    server: Server[Any] = Server("forge", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
