"""An MCP server with a tool that writes files, as filesystem servers have."""

from __future__ import annotations

from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("files")


@server.tool()
def write_file(path: str, content: str) -> str:
    """Write a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content)
    return "written"


if __name__ == "__main__":
    server.run()
