"""The server of a bridge whose settings have a mistake: it says which, and runs nothing.

A server that ends before the handshake is a closed connection to most clients, and what it said on
stderr is seen by nobody.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from bridge import __version__
from bridge.errors import BridgeError
from bridge.server.app import TOOL
from bridge.server.search_tool import SEARCH_TOOL
from bridge.text import without_values


def mistaken_server(error: BridgeError) -> Server[Any]:
    """Return a server with the usual tools, each of which answers with the error.

    It does not repeat what the setting is: that may be a secret which was put in the wrong place.
    """
    problem = without_values(str(error))
    said = (
        f"The bridge's settings have a mistake, so it runs nothing. {problem} "
        "Tell the user: correct it (`mcp-code-bridge doctor` shows it whole), then reconnect this "
        "MCP server."
    )

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=said, input_schema={"type": "object"})
            for name in (TOOL, SEARCH_TOOL)
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=said)], is_error=True
        )

    return Server(
        "mcp-code-bridge",
        version=__version__,
        title="MCP code bridge",
        instructions=said,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
