"""An MCP server whose own cost is next to nothing. Stdio, by hand.

Owns the other end of large results and of many calls at once. Written without the SDK, whose server
needs longer for 200 calls than the bridge may take in all, and longer to write 50 MB than the
bridge may take to carry them: what is measured is the carrying.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from typing import Any

LINE = "a line of a large result, of which there are many, as of a log or a table of numbers\n"

MAX_REQUEST_BYTES = 1024 * 1024
"""Of one line; requests here have a few hundred bytes."""

TOOLS = [
    {
        "name": "big",
        "description": "Return so many characters of text.",
        "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}},
    },
    {
        "name": "sleep",
        "description": "Wait, then do nothing.",
        "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}},
    },
]

NOTHING = b'{"content":[{"type":"text","text":"ok"}]}'


def text(size: int) -> str:
    """Return `size` characters of text in lines."""
    return (LINE * (size // len(LINE) + 1))[:size]


def big(size: int, cache: dict[int, bytes]) -> bytes:
    """Return the result of `big`, made once for each size."""
    if size not in cache:
        content = {"content": [{"type": "text", "text": text(size)}]}
        cache[size] = json.dumps(content).encode()
    return cache[size]


def described(message: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request that is no call."""
    if message["method"] == "initialize":
        return {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lean", "version": "1"},
        }
    return {"tools": TOOLS} if message["method"] == "tools/list" else {}


def write(identity: object, result: bytes) -> None:
    """Write an answer, waiting while no one reads."""
    head = b'{"jsonrpc":"2.0","id":' + json.dumps(identity).encode() + b',"result":'
    if len(result) < 4096:
        os.write(1, head + result + b"}\n")
        return
    sys.stdout.buffer.write(head)
    sys.stdout.buffer.write(result)
    sys.stdout.buffer.write(b"}\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    """Serve until stdin ends."""
    cache: dict[int, bytes] = {}
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] != "tools/call":
            write(message["id"], json.dumps(described(message)).encode())
            continue
        arguments = message["params"].get("arguments") or {}
        if message["params"]["name"] == "sleep":
            loop.call_later(arguments["seconds"], partial(write, message["id"], NOTHING))
        else:
            write(message["id"], big(int(arguments["size"]), cache))


if __name__ == "__main__":
    asyncio.run(main())
