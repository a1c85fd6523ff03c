"""An issue tracker with pages, failures and pictures, over stdio. Standard library only.

Writes each call to the file that TRACKER_LOG names: a line with the tool and its arguments.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TEXTS = {"type": "array", "items": TEXT}
PEOPLE, PAGE, PER_PAGE, LINES = ("ann", "ben", "eve"), 20, 25, 2_000
LOCKED = 13

ISSUES: list[dict[str, Any]] = [
    {
        "id": number,
        "title": f"Issue {number}: {'crash' if number % 7 == 0 else 'wish'}",
        "state": "open" if number % 3 else "closed",
        "labels": ["bug"] if number % 2 else ["docs", "p1"],
        "author": {"login": PEOPLE[number % 3], "id": 725653563933458432 + number},
        "created_at": f"2026-{1 + number % 12:02d}-{1 + number % 28:02d}T10:00:00Z",
        "comments": number % 5,
        "assignee": None if number % 4 else "ann",
    }
    for number in range(1, 58)
]

STATE = {"type": "string", "enum": ["open", "closed", "all"], "default": "open"}
SHAPE = {"id": WHOLE, "title": TEXT, "state": TEXT, "labels": TEXTS}
READS: dict[str, Any] = {
    "list_issues": (
        "List issues, 20 a page. Pass `cursor` from `nextCursor` for the next page.",
        {"state": STATE, "cursor": TEXT, "limit": {"type": "integer", "maximum": 50}},
    ),
    "list_issues_page": (
        "List issues of a page (from 1, 25 each); an empty list after the last.",
        {"page": WHOLE, "per_page": WHOLE},
    ),
    "get_issue": ("One issue.", {"id": WHOLE}),
    "search_issues": ("Search, as Markdown text.", {"query": TEXT}),
    "flaky_stats": ("Statistics; fails at times.", {"key": TEXT}),
    "get_screenshot": ("Screenshot of an issue.", {"id": WHOLE}),
    "export_csv": ("All issues as CSV text.", {}),
    "get_log": ("Build log of an issue, text.", {"id": WHOLE}),
    "slow_report": ("Takes a while.", {"seconds": {"type": "number"}}),
}
WRITES: dict[str, Any] = {
    "create_issue": ("Create an issue.", {"title": TEXT, "body": TEXT, "labels": TEXTS}),
    "add_comment": ("Comment on an issue.", {"id": WHOLE, "text": TEXT}),
    "close_issue": ("Close an issue.", {"id": WHOLE, "reason": TEXT}),
}
OPTIONAL = {"state", "cursor", "limit", "per_page", "key", "seconds", "body", "labels", "reason"}


def tool(name: str, description: str, properties: Any) -> dict[str, Any]:
    required = [key for key in properties if key not in OPTIONAL]
    schema = {"type": "object", "properties": properties, "required": required}
    found = {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": name in READS},
    }
    if name == "get_issue":
        found["outputSchema"] = {"type": "object", "properties": SHAPE, "required": ["id", "title"]}
    return found


TOOLS = [tool(name, *rest) for name, rest in {**READS, **WRITES}.items()]
tries: Counter[str] = Counter()


def picture(side: int) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    rows = zlib.compress((b"\0" + b"\xff\0\0" * side) * side)
    whole = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def page_of(state: str, cursor: str, limit: int) -> dict[str, Any]:
    found = [issue for issue in ISSUES if state in ("all", issue["state"])]
    start, end = int(cursor or 0), int(cursor or 0) + limit
    more = str(end) if end < len(found) else None
    return {"issues": found[start:end], "total": len(found), "nextCursor": more}


def line_of_log(number: int, issue: int) -> str:
    level = "INFO" if number % 50 else "ERROR"
    return f"2026-11-{1 + number % 28:02d} {level} step {number} of issue {issue}"


def answer(name: str, given: dict[str, Any]) -> Any:
    number = given.get("id", 0)
    if name == "list_issues":
        limit = given.get("limit") or PAGE
        return page_of(given.get("state", "open"), given.get("cursor", ""), limit)
    if name == "list_issues_page":
        size = given.get("per_page") or PER_PAGE
        return ISSUES[(given["page"] - 1) * size : given["page"] * size]
    if name == "get_issue":
        found = [issue for issue in ISSUES if issue["id"] == number]
        if not found:
            raise ValueError(f"404 Not Found: issue {number}")
        return found[0]
    if name == "search_issues":
        lines = [f"- **#{i['id']}** {i['title']}" for i in ISSUES if given["query"] in i["title"]]
        return f"## {len(lines)} results\n\n" + "\n".join(lines)
    if name == "create_issue":
        new = {"id": len(ISSUES) + 1, "title": given["title"], "state": "open"}
        return {**new, "labels": given.get("labels") or []}
    if name == "close_issue" and number == LOCKED:
        raise ValueError(f"409 Conflict: issue {number} is locked")
    if name == "flaky_stats":
        tries[given.get("key", "")] += 1
        if tries[given.get("key", "")] % 3:
            raise ValueError("503 Service Unavailable, try again")
        return {"open": 38, "closed": 19}
    if name == "export_csv":
        head, columns = "id,title,state,comments\n", ("id", "title", "state", "comments")
        return head + "\n".join(",".join(str(i[key]) for key in columns) for i in ISSUES)
    if name == "get_log":
        return "\n".join(line_of_log(step, number) for step in range(LINES))
    if name == "slow_report":
        time.sleep(given.get("seconds", 1))
    return {"add_comment": "Comment added.", "slow_report": "done"}.get(name, {"id": number})


def result(name: str, given: dict[str, Any]) -> dict[str, Any]:
    try:
        value = answer(name, given)
    except ValueError as error:
        return {"isError": True, "content": [{"type": "text", "text": str(error)}]}
    blocks = [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]
    if name == "get_screenshot":
        blocks[0]["text"] = f"Screenshot of {given['id']}"
        blocks.append({"type": "image", "mimeType": "image/png", "data": picture(8)})
    structure = {"structuredContent": value} if name == "get_issue" else {}
    return {"content": blocks, **structure}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            continue
        reply: dict[str, Any] = {"error": {"code": -32601, "message": f"no method {method}"}}
        if method == "initialize":
            told = {"name": "tracker", "version": "1"}
            version = params["protocolVersion"]
            reply = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": told}
            reply = {"result": reply}
        elif method == "tools/list":
            reply = {"result": {"tools": TOOLS}}
        elif method == "tools/call":
            given = params.get("arguments") or {}
            if "TRACKER_LOG" in os.environ:
                with Path(os.environ["TRACKER_LOG"]).open("a") as log:
                    log.write(f"{params['name']} {json.dumps(given)}\n")
            reply = {"result": result(params["name"], given)}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
