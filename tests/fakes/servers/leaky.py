"""A stdio MCP server in plain Python that puts its own secret wherever it can say anything.

The secret is LEAKY_TOKEN of its environment. Each place is named in front of the secret, so that a
test sees which were reached.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any
from urllib.parse import quote

TOKEN = os.environ.get("LEAKY_TOKEN", "")

FORMS = [
    TOKEN,
    json.dumps({"in JSON": TOKEN}),
    json.dumps(json.dumps({"in JSON in JSON": TOKEN}, ensure_ascii=False)),
    quote(TOKEN, safe=""),
    base64.b64encode(f"user:{TOKEN}".encode()).decode(),
    base64.urlsafe_b64encode(f"{TOKEN}!".encode()).decode(),
]

TOLD = {"type": "string", "description": TOKEN}
TOOL = {
    "title": f"title {TOKEN}",
    "description": f"about {TOKEN}",
    "inputSchema": {"type": "object", "properties": {"x": TOLD, "password": TOLD}},
}
FORM = {"type": "object", "properties": {"name": TOLD}}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


CALLS = {
    "say": text(f"result {' '.join(FORMS)}"),
    "data": text(
        TOKEN,
        structuredContent={
            "field": f"structured {TOKEN}",
            f"key {TOKEN}": FORMS,
            "number": 1.5,
            "none": None,
        },
    ),
    "large": text(f"large {TOKEN} {'.' * 200_000} {' '.join(FORMS)}"),
    "fail": text(f"failure {TOKEN} {'x' * 15_970} {TOKEN}", isError=True),
    "refuse": None,
    "notify": text("done"),
    "ask": None,
}

ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}},
        "serverInfo": {"name": "leaky", "version": "1"},
        "instructions": f"instructions {TOKEN}",
    },
    "logging/setLevel": {},
    "tools/list": {"tools": [{"name": name, **TOOL} for name in CALLS]},
    "resources/list": {"resources": [{"uri": "leak:one", "name": f"offer {TOKEN}"}]},
    "resources/read": {"contents": [{"uri": "leak:one", "text": f"resource {TOKEN}"}]},
    "prompts/list": {"prompts": [{"name": "one", "description": TOKEN}]},
    "prompts/get": {
        "description": TOKEN,
        "messages": [{"role": "user", "content": {"type": "text", "text": f"prompt {TOKEN}"}}],
    },
}


def send(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def notify(params: dict[str, Any]) -> None:
    token = (params.get("_meta") or {}).get("progressToken")
    if token is not None:
        told = f"progress {TOKEN} {'y' * 470} {TOKEN}"
        report = {"progressToken": token, "progress": 1, "total": 2, "message": told}
        send(method="notifications/progress", params=report)
    said = {"level": "error", "logger": TOKEN, "data": {"message": [TOKEN, "z" * 3950, TOKEN]}}
    send(method="notifications/message", params=said)


def ask() -> dict[str, Any]:
    wanted = {"message": f"question {TOKEN}", "requestedSchema": FORM}
    send(id="q", method="elicitation/create", params=wanted)
    while (reply := json.loads(sys.stdin.buffer.readline())).get("id") != "q":
        pass
    return text(reply["result"]["action"])


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        number, method, params = message.get("id"), message["method"], message.get("params") or {}
        tool = params["name"] if method == "tools/call" else ""
        if tool == "notify":
            notify(params)
        result = ask() if tool == "ask" else CALLS.get(tool) or ANSWERS.get(method)
        if tool == "refuse":
            error = {"code": -32000, "message": f"refusal {TOKEN}", "data": {"data": TOKEN}}
            send(id=number, error=error)
        elif result is not None:
            send(id=number, result=result)
        elif number is not None:
            send(id=number, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main()
