"""A stdio MCP server in plain Python that asks its client whatever it is told to ask.

Its tool `ask` takes `method`, `params` and how often (`count`), asks all at once, and returns the
replies' results and the messages of their errors, each once. An argument is the protocol version
that it speaks. Standard library only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LATER: list[dict[str, Any]] = []  # Messages that came while it waited for answers.


def send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def ask(request_id: Any, method: str, params: dict[str, Any], count: int = 1) -> None:
    waiting = {f"q-{number}" for number in range(count)}
    found: dict[str, Any] = {}
    for key in sorted(waiting):
        send({"id": key, "method": method, "params": params})
    while waiting:
        reply = json.loads(sys.stdin.buffer.readline())
        if reply.get("id") in waiting:
            waiting.remove(reply["id"])
            said = reply["error"]["message"] if "error" in reply else reply["result"]
            found[json.dumps(said)] = said
        else:
            LATER.append(reply)
    answer = {"content": [], "structuredContent": {"replies": list(found.values())}}
    send({"id": request_id, "result": answer})


def main() -> None:
    while LATER or (line := sys.stdin.buffer.readline()):
        message = LATER.pop(0) if LATER else json.loads(line)
        request_id, params = message.get("id"), message.get("params", {})
        if message.get("method") == "initialize":
            facts = {
                "protocolVersion": sys.argv[1] if len(sys.argv) > 1 else "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "inquirer", "version": "1"},
            }
            send({"id": request_id, "result": facts})
        elif message.get("method") == "tools/list":
            tool = {"name": "ask", "inputSchema": {"type": "object"}}
            send({"id": request_id, "result": {"tools": [tool]}})
        elif message.get("method") == "tools/call":
            ask(request_id, **params["arguments"])
        elif request_id is not None:
            send({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
