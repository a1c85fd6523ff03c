"""An MCP server that keeps what it is given, each line by one write, for tests of what happened.

    keeper.py FILE

`keep` appends an id to FILE; `hold` says in a file that it has begun, and answers once there is
another. A call of `hold` does not hinder others.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TOOLS = {
    "keep": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    "hold": {
        "type": "object",
        "properties": {"begun": {"type": "string"}, "until": {"type": "string"}},
        "required": ["begun", "until"],
    },
}


def send(message: dict[str, Any]) -> None:
    """Write one message; one write, so that threads' lines do not mix."""
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request: Any, name: str, given: dict[str, str]) -> None:
    """Do what a tool does, and answer."""
    if name == "hold":
        Path(given["begun"]).touch()
        while not Path(given["until"]).exists():
            time.sleep(0.02)
    else:
        log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, given["id"].encode() + b"\n")
        os.close(log)
    send({"id": request, "result": {"content": [{"type": "text", "text": "done"}]}})


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        request, method, params = message.get("id"), message["method"], message.get("params") or {}
        if method == "initialize":
            told = {"capabilities": {"tools": {}}, "serverInfo": {"name": "keeper", "version": "1"}}
            send({"id": request, "result": {"protocolVersion": "2025-11-25", **told}})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
            send({"id": request, "result": {"tools": tools}})
        elif method == "tools/call":
            given = params.get("arguments") or {}
            work = (request, params["name"], given)
            threading.Thread(target=answer, args=work, daemon=True).start()
        elif request is not None:
            send({"id": request, "result": {}})


if __name__ == "__main__":
    main()
