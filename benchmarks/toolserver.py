"""An MCP server whose tools do next to nothing. Stdio, on the SDK's low-level server.

    python benchmarks/toolserver.py [TOOLS]

Owns the other end of the no-op call, of calls from the sandbox and of their direct counterparts.
TOOLS is how many it lists in all; those beyond the first three are there to be listed.
"""

from __future__ import annotations

import sys
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

DEFAULT_TOOLS = 10

_FILLER = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Which one."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many at most."},
        "kinds": {"type": "array", "items": {"enum": ["open", "closed"]}},
    },
    "required": ["path"],
}


def tools(count: int) -> list[Tool]:
    """Return the list of tools, `count` of them."""
    seconds = {"type": "object", "properties": {"seconds": {"type": "number"}}}
    real = [
        Tool(name="noop", description="Do nothing.", input_schema={"type": "object"}),
        Tool(name="sleep", description="Wait, then do nothing.", input_schema=seconds),
    ]
    filler = [
        Tool(
            name=f"list_things_{number}",
            description=f"List the things of store {number}, newest first, with their state.",
            input_schema=_FILLER,
        )
        for number in range(max(0, count - len(real)))
    ]
    return [*real, *filler]


def make_server(count: int) -> Server[Any]:
    """Return the server, not yet connected."""
    listed = ListToolsResult(tools=tools(count))
    nothing = CallToolResult(content=[TextContent(text="ok")])

    async def on_list_tools(
        context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return listed

    async def on_call_tool(
        context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        if params.name == "sleep":
            await anyio.sleep((params.arguments or {}).get("seconds", 0.05))
        return nothing

    return Server("bench", on_list_tools=on_list_tools, on_call_tool=on_call_tool)


async def main(count: int) -> None:
    """Serve until the client closes stdin."""
    server = make_server(count)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_TOOLS)
