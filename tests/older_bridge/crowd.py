"""A stdio MCP server with many tools and long or hostile descriptions. Standard library only.

With the argument "many" it has 150 tools, each with a description of 1,000 characters. With
"hostile" it has one tool for each text in HOSTILE, which is the tool's description, part of its
name, and the name and description of its one argument.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MANY = 150

HOSTILE = (
    "__CODE_LITERAL__ __METADATA_JSON__ __NAME__",
    "{code} {{code}} {0} {} %(code)s %s %",
    "${CODE} $CODE $(id) `id` <%= code %>",
    "''' + __import__('os').abort() + '''",
    '"""\nraise SystemExit(99)\n"""',
    "\\\nraise SystemExit(98)\n#\\N{BULLET} \\x \\",
    "'), 1/0, ('",
)


def tool(name: str, description: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": description}}
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema}


def tools(kind: str) -> list[dict[str, Any]]:
    if kind == "many":
        return [tool(f"tool_{n}", f"Number {n}. ".ljust(1000, "x"), "what") for n in range(MANY)]
    return [tool(f"{n}{text}", text, text) for n, text in enumerate(HOSTILE)]


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    match request.get("method"):
        case "initialize":
            return {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "crowd", "version": "1"},
            }
        case "tools/list":
            return {"tools": tools(sys.argv[1])}
        case "tools/call":
            return {"content": [], "structuredContent": request["params"]}
        case _:
            return None


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        result = answer(request)
        if result is None:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        else:
            reply["result"] = result
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
