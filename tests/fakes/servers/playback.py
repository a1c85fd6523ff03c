"""A stdio MCP server that answers with what lies in files, byte for byte. Standard library only.

Its argument is a directory: `tools-1`, `tools-2`, … hold the pages of its list of tools, as do
`resources` and `prompts`, `result` what every call returns, `before` what it writes ahead of that.
A call whose argument `line` is a text is answered with that, with the request's number for ID.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HOME = Path(sys.argv[1])
out = sys.stdout.buffer


def answer(number: object, result: bytes) -> None:
    out.write(b'{"jsonrpc":"2.0","id":%b,"result":' % json.dumps(number).encode())
    out.write(result + b"}\n")
    out.flush()


def stored(name: str, default: bytes) -> bytes:
    file = HOME / name
    return file.read_bytes() if file.exists() else default


for line in sys.stdin.buffer:
    request = json.loads(line)
    method, number = request.get("method"), request.get("id")
    if number is None or method is None:
        continue
    if method == "initialize":
        answer(
            number,
            json.dumps(
                {
                    "protocolVersion": request["params"]["protocolVersion"],
                    "capabilities": {
                        "tools": {"listChanged": True},
                        "resources": {},
                        "prompts": {},
                        "logging": {},
                    },
                    "serverInfo": {"name": "playback", "version": "1"},
                }
            ).encode(),
        )
    elif method.endswith("/list"):
        kind = method.partition("/")[0]
        cursor = (request.get("params") or {}).get("cursor") or "1"
        answer(number, stored(f"{kind}-{cursor}", b'{"%b":[]}' % kind.encode()))
    elif isinstance(line := (request["params"].get("arguments") or {}).get("line"), str):
        out.write(line.replace("ID", json.dumps(number), 1).encode() + b"\n")
        out.flush()
    else:
        out.write(stored("before", b""))
        answer(number, stored("result", b'{"content":[{"type":"text","text":"ok"}]}'))
