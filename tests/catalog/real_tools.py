"""What real servers list: memory, everything, filesystem, fetch and sqlite, as recorded."""

from __future__ import annotations

import json
from pathlib import Path

from bridge.model import Tool

RECORDED = Path(__file__).parents[1] / "testdata" / "tools.json"


def real_tools() -> dict[str, tuple[Tool, ...]]:
    """Return the tools by server."""
    servers = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {
        server: tuple(
            Tool(
                server=server,
                name=tool["name"],
                title=tool.get("title", ""),
                description=tool.get("description", ""),
                input_schema=tool["inputSchema"],
                output_schema=tool.get("outputSchema"),
            )
            for tool in tools
        )
        for server, tools in servers.items()
    }
