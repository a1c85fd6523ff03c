"""An MCP server that writes down every call it gets, for tests of what calls are made at all.

    recorder.py LOG

It speaks the era with a handshake, in plain Python, which starts soonest. Each call is a line of
JSON in LOG, written before anything else is done about it: its number in this process, the tool
("resources/read" or "prompts/get" for those) and the arguments.

What can be read is in RECORDER_NOTES: a JSON object of topic, or address, to text. With
RECORDER_BARE set, tools come without annotations.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

Json = Any

NOTES: dict[str, str] = json.loads(os.environ.get("RECORDER_NOTES", "{}"))
BARE = bool(os.environ.get("RECORDER_BARE"))

READS = {"readOnlyHint": True, "openWorldHint": False}
READS_THE_WORLD = {"readOnlyHint": True, "openWorldHint": True}
WRITES = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
SENDS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True}
DESTROYS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}

CREATED = {"id": "integer", "title": "string", "url": "string"}

LATE = object()
"""What a tool returns that is answered later, by `release`."""

failures: Counter[str] = Counter()
created: list[str] = []
calls: list[str] = []


def schema(types: dict[str, str], required: tuple[str, ...] | None = None) -> dict[str, Json]:
    """Return an object's schema; every property is required unless `required` says otherwise."""
    properties = {name: {"type": kind} if kind else {} for name, kind in types.items()}
    names = list(types) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": names}


def tool(
    name: str,
    about: str,
    types: dict[str, str],
    annotations: dict[str, bool] | None = None,
    *,
    required: tuple[str, ...] | None = None,
    output: dict[str, str] | None = None,
) -> dict[str, Json]:
    """Return a tool as it is listed."""
    described = {"name": name, "description": about, "inputSchema": schema(types, required)}
    if annotations is not None and not BARE:
        described["annotations"] = annotations
    if output is not None:
        described["outputSchema"] = schema(output)
    return described


_TEXT = {"text": "string"}
_TOPIC = {"topic": "string"}

TOOLS: dict[str, dict[str, Json]] = {
    described["name"]: described
    for described in (
        tool("list_notes", "List the topics of all notes.", {}, READS),
        tool("read_note", "Read a note.", _TOPIC, READS),
        tool("fetch", "Fetch a page.", {"url": "string"}, READS_THE_WORLD),
        tool("big", "Return much text.", {"size": "integer"}, READS),
        tool(
            "show_environment", "Return a variable of the environment.", {"name": "string"}, READS
        ),
        tool(
            "create",
            "Create an item, below another one if a parent is given.",
            {"title": "string", "body": "string", "parent": "integer"},
            WRITES,
            required=("title",),
            output=CREATED,
        ),
        tool("write_note", "Write a note.", {**_TOPIC, **_TEXT}, WRITES),
        tool("delete_note", "Delete a note.", _TOPIC, DESTROYS),
        tool("send", "Send a message to somebody.", {"to": "string", **_TEXT}, SENDS),
        tool(
            "transfer",
            "Transfer an amount.",
            {"to": "string", "amount": "number", "confirmed": "boolean"},
            DESTROYS,
            required=("to", "amount"),
        ),
        tool("plain", "Do something without a description of its effect.", {"value": ""}),
        tool("fail", "Fail, always.", _TEXT, WRITES, required=()),
        tool(
            "fail_times",
            "Fail as many times for a key, and then no more.",
            {"key": "string", "times": "integer"},
            WRITES,
        ),
        tool("refuse", "Answer with a protocol error.", {}, WRITES),
        tool("slow", "Answer once `release` is called.", _TEXT, WRITES, required=()),
        tool("release", "Have every `slow` answered.", {}, WRITES),
        tool("die", "End the server without an answer.", {}, WRITES),
        tool(
            "redescribe",
            "Change a tool's description, and say that tools changed.",
            {"tool": "string", "description": "string"},
            WRITES,
        ),
    )
}


def record(name: str, arguments: dict[str, Json]) -> None:
    """Append a call to the log; one write, so that lines of several processes do not mix."""
    calls.append(name)
    line = json.dumps({"number": len(calls), "tool": name, "arguments": arguments})
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, line.encode() + b"\n")
    finally:
        os.close(log)


def said(value: str, *, error: bool = False) -> dict[str, Json]:
    """Return a result of one text."""
    return {"content": [{"type": "text", "text": value}], "isError": error}


def structured(value: dict[str, Json]) -> dict[str, Json]:
    """Return a result of one object."""
    return {**said(json.dumps(value)), "structuredContent": value}


def result_of(name: str, given: dict[str, Json]) -> Json:
    """Do what a tool does; return its result, LATE, or None for a protocol error."""
    if name == "list_notes":
        return structured({"topics": sorted(NOTES)})
    if name in ("read_note", "fetch"):
        what = given["topic" if name == "read_note" else "url"]
        if what not in NOTES:
            return said(f"there is nothing at {what!r}", error=True)
        return structured({"from": what, "text": NOTES[what]})
    if name == "big":
        return said("x" * int(given["size"]))
    if name == "show_environment":
        return said(os.environ.get(given["name"], ""))
    if name == "create":
        created.append(given["title"])
        number = len(created)
        url = f"https://example.org/{number}"
        return structured({"id": number, "title": given["title"], "url": url})
    if name == "slow":
        return LATE
    if name == "refuse":
        return None
    return changed(name, given)


def changed(name: str, given: dict[str, Json]) -> dict[str, Json]:
    """Do what the tools that change something do."""
    if name == "write_note":
        NOTES[given["topic"]] = given["text"]
    elif name == "delete_note":
        NOTES.pop(given["topic"], None)
    elif name == "fail":
        return said("failed as asked to", error=True)
    elif name == "fail_times":
        failures[given["key"]] += 1
        if failures[given["key"]] <= given["times"]:
            return said(f"failed, time {failures[given['key']]}", error=True)
    elif name == "die":
        os._exit(7)
    elif name == "redescribe":
        TOOLS[given["tool"]]["description"] = given["description"]
    return structured({"done": name})


def resources() -> list[dict[str, Json]]:
    """Return what of the notes is listed as resources."""
    return [{"uri": f"note:///{topic}", "name": topic} for topic in sorted(NOTES)]


def contents(uri: str) -> list[dict[str, Json]]:
    """Return a note as a resource."""
    record("resources/read", {"uri": uri})
    text = NOTES.get(uri.removeprefix("note:///"), "")
    return [{"uri": uri, "mimeType": "text/plain", "text": text}]


PROMPT = {"name": "review", "arguments": [{"name": "topic", "required": True}]}


def messages(name: str, given: dict[str, Json]) -> list[dict[str, Json]]:
    """Return a prompt about a note."""
    record("prompts/get", {"name": name, "arguments": given})
    text = NOTES.get(given.get("topic", ""), "")
    return [{"role": "user", "content": {"type": "text", "text": text}}]


def send(message: dict[str, Json]) -> None:
    """Send one message."""
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def serve() -> None:
    """Serve over stdio until it ends, one message after the other."""
    waiting: list[Json] = []
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            answer(message["id"], message["method"], message.get("params") or {}, waiting)


def answer(request: Json, method: str, params: dict[str, Json], waiting: list[Json]) -> None:
    """Answer one request, or keep it waiting."""
    result: Json = None
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
            "serverInfo": {"name": "recorder", "version": "1"},
        }
    elif method == "ping":
        result = {}
    elif method == "tools/list":
        result = {"tools": list(TOOLS.values())}
    elif method == "resources/list":
        result = {"resources": resources()}
    elif method == "resources/templates/list":
        result = {"resourceTemplates": []}
    elif method == "prompts/list":
        result = {"prompts": [PROMPT]}
    elif method == "resources/read":
        result = {"contents": contents(params["uri"])}
    elif method == "prompts/get":
        result = {"messages": messages(params["name"], params.get("arguments") or {})}
    elif method == "tools/call" and params["name"] in TOOLS:
        given = params.get("arguments") or {}
        record(params["name"], given)
        result = result_of(params["name"], given)
        if result is LATE:
            waiting.append(request)
            return
        if params["name"] == "release":
            for earlier in waiting:
                send({"id": earlier, "result": said("released")})
            waiting.clear()
        elif params["name"] == "redescribe":
            send({"method": "notifications/tools/list_changed"})
    if result is None:
        send({"id": request, "error": {"code": -32601, "message": f"{method} is refused"}})
    else:
        send({"id": request, "result": result})


if __name__ == "__main__":
    serve()
