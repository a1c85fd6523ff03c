"""An MCP server with the kinds of tools and answers that programs meet. Stdio.

In plain Python and of the era with a handshake: it starts in a tenth of the time that importing the
SDK takes, and hundreds of tests start one. `toolbox.py` is on the SDK.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = Any
Arguments = dict[str, Json]

PROTOCOL = "2025-11-25"
PIXEL = base64.b64encode(b"\x89PNG not really").decode()
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}

LATE = object()
"""What a tool returns that is answered later, if at all."""

waiting: dict[Json, Arguments] = {}
"""Calls of `slow` under way."""

together: defaultdict[str, list[Json]] = defaultdict(list)
"""Calls of `meet` by party; of one that has met, `None` alone."""


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def said(value: str) -> Json:
    return {"content": [text(value)]}


def schema(required: list[str], **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": required}


def echo(_: Json, arguments: Arguments) -> Json:
    return {"content": [], "structuredContent": arguments}


def add(_: Json, arguments: Arguments) -> Json:
    total = arguments["a"] + arguments["b"]
    return {**said(str(total)), "structuredContent": {"sum": total}}


def rows(_: Json, arguments: Arguments) -> Json:
    return said('[{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]')


def say(_: Json, arguments: Arguments) -> Json:
    return said(arguments["what"])


def fail(_: Json, arguments: Arguments) -> Json:
    return {**said("the store is empty"), "structuredContent": {"store": 7}, "isError": True}


def big(_: Json, arguments: Arguments) -> Json:
    return said("x" * arguments["size"])


def slow(request: Json, arguments: Arguments) -> Json:
    Path(arguments["started"]).write_text("yes")
    waiting[request] = arguments
    return LATE


def called_off(request: Json) -> None:
    """Note that a call of `slow` is not wanted any more."""
    if request in waiting:
        Path(waiting.pop(request)["cancelled"]).write_text("yes")


def meet(request: Json, arguments: Arguments) -> Json:
    """Answer once as many calls of one party as `count` are under way at the same time."""
    party = together[arguments.get("party", "")]
    if party == [None]:
        return said("met")
    party.append(request)
    if len(party) < arguments["count"]:
        return LATE
    for earlier in party[:-1]:
        send({"id": earlier, "result": said("met")})
    party[:] = [None]
    return said("met")


def image(_: Json, arguments: Arguments) -> Json:
    return {"content": [IMAGE]}


def mixed(_: Json, arguments: Arguments) -> Json:
    embedded = {"uri": "file:///a.bin", "mimeType": "application/x-a", "blob": PIXEL}
    return {
        "content": [
            text("a note"),
            IMAGE,
            {"type": "resource", "resource": embedded},
            {"type": "resource_link", "uri": "https://example.org/x", "name": "x"},
        ]
    }


def crash(_: Json, arguments: Arguments) -> Json:
    os._exit(9)


TOOLS: dict[str, tuple[Callable[[Json, Arguments], Json], dict[str, Any], str]] = {
    "echo": (echo, {"type": "object"}, "Return the arguments."),
    "add": (add, schema(["a", "b"], a="number", b="number"), "Add two numbers."),
    "rows": (rows, {"type": "object"}, "List rows. __CODE_LITERAL__ {code}"),
    "say": (say, schema(["what"], what="string"), "Say something."),
    "fail": (fail, {"type": "object"}, "Always fails."),
    "big": (big, schema(["size"], size="integer"), "Return much text."),
    "slow": (slow, schema([], started="string", cancelled="string"), "Never answers."),
    "meet": (meet, schema(["count"], count="integer", party="string"), "Wait for others."),
    "image": (image, {"type": "object"}, "Return a picture."),
    "mixed": (mixed, {"type": "object"}, "Return several blocks."),
    "crash": (crash, {"type": "object"}, "End the server."),
    "__import__": (echo, {"type": "object"}, "A hostile name."),
    "class": (echo, {"type": "object"}, "A keyword."),
    "get-Item.v2": (echo, schema(["from"], **{"from": "string"}), "An awkward name."),
}


def send(message: dict[str, Json]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def result_of(request: Json, method: str, params: dict[str, Json]) -> Json:
    """Return what answers a request, `LATE` or `None` where there is no such method."""
    if method == "initialize":
        return {
            "protocolVersion": PROTOCOL,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "workshop", "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {
            "tools": [
                {"name": name, "description": about, "inputSchema": arguments}
                for name, (_, arguments, about) in TOOLS.items()
            ]
        }
    if method == "tools/call":
        return TOOLS[params["name"]][0](request, params.get("arguments") or {})
    return None


def answer(request: Json, method: str, params: dict[str, Json]) -> None:
    try:
        result = result_of(request, method, params)
    except (KeyError, TypeError, OSError) as error:
        send({"id": request, "error": {"code": -32603, "message": str(error)}})
        return
    if result is None:
        send({"id": request, "error": {"code": -32601, "message": "Method not found"}})
    elif result is not LATE:
        send({"id": request, "result": result})


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, params = message.get("method", ""), message.get("params") or {}
        if "id" in message:
            answer(message["id"], method, params)
        elif method == "notifications/cancelled":
            called_off(params["requestId"])
    for request in list(waiting):
        called_off(request)


if __name__ == "__main__":
    main()
