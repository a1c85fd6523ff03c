"""What real servers list, as recorded."""

from __future__ import annotations

import json
from pathlib import Path

from bridge.model import Json, Tool

RECORDED = Path(__file__).parents[1] / "testdata"


def real_tools() -> dict[str, tuple[Tool, ...]]:
    servers = json.loads((RECORDED / "tools.json").read_text(encoding="utf-8"))
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


def listed_tools() -> dict[str, tuple[Tool, ...]]:
    found: dict[str, tuple[Tool, ...]] = {}
    servers = json.loads((RECORDED / "listed_tools.json").read_text(encoding="utf-8"))
    for server, tools in servers.items():
        for name, text, parameters in tools:
            schema: Json = {"properties": dict.fromkeys(parameters.split(), {})}
            tool = Tool(server=server, name=name, description=text, input_schema=schema)
            found[server] = (*found.get(server, ()), tool)
    return found
