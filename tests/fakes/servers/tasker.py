"""A stdio MCP server in plain Python that runs its tools as tasks, in the form of either era.

Its first argument is the protocol version that it speaks. The tool `work` ends as its argument
`ends` says: `well`, `badly`, `never`, or `asks` for a name first; what is asked of it is written to
the file that the second argument names, one method a line. Standard library only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VERSION, LOG = sys.argv[1], Path(sys.argv[2])
MODERN = VERSION >= "2026"
TASK: dict[str, Any] = {
    "taskId": "t 1",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
}
TASK |= {"ttlMs": None, "pollIntervalMs": -(10**400)} if MODERN else {"ttl": None}
FORM = {
    "mode": "form",
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
CAPABILITIES: dict[str, Any] = {"tools": {}}
if MODERN:
    CAPABILITIES["extensions"] = {"io.modelcontextprotocol/tasks": {}}
else:
    CAPABILITIES["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}


class Server:
    """What it has been told."""

    ends = ""
    name = ""
    looks = 0

    def result(self) -> dict[str, Any]:
        """Return the tool's result."""
        return {"content": [{"type": "text", "text": f"done {self.name}".strip()}]}

    def looked_at(self) -> dict[str, Any]:
        """Return the task as `tasks/get` shows it."""
        self.looks += 1
        status: dict[str, Any] = {"status": "working"}
        if MODERN and self.looks == 1:
            status["pollIntervalMs"] = float("nan")
        if self.ends == "asks" and not self.name:
            status = {"status": "input_required"}
            status["inputRequests"] = {"q": {"method": "elicitation/create", "params": FORM}}
        elif self.ends == "badly":
            status = {"status": "failed", "error": {"code": -32603, "message": "no luck"}}
        elif self.ends != "never" and self.looks > 2:
            status = {"status": "completed", "result": self.result()}
        return {**TASK, **status}

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a request; None if it has none now."""
        if method == "initialize":
            facts = {"name": "tasker", "version": "1"}
            return {"protocolVersion": VERSION, "capabilities": CAPABILITIES, "serverInfo": facts}
        if method == "server/discover":
            return {"supportedVersions": [VERSION], "capabilities": CAPABILITIES}
        if method == "tools/list":
            schema = {"type": "object", "properties": {"ends": {"type": "string"}}}
            tool = {"name": "work", "inputSchema": schema}
            return {
                "tools": [tool if MODERN else {**tool, "execution": {"taskSupport": "required"}}]
            }
        if method == "tools/call":
            self.ends, self.name, self.looks = params["arguments"]["ends"], "", 0
            if MODERN:
                return {**TASK, "status": "working", "resultType": "task"}
            if not params["task"]["ttl"] > 0:
                raise AssertionError(params)
            return {"task": {**TASK, "status": "working"}}
        if method == "tasks/get":
            return self.looked_at()
        if method == "tasks/update":
            self.name = params["inputResponses"]["q"]["content"]["client"]
        if method == "tasks/result":
            if self.ends == "badly":
                raise ValueError
            return self.result() if self.ends == "well" else None
        return {}


def main() -> None:
    server = Server()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        with LOG.open("a") as log:
            log.write(method + "\n")
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if MODERN and method == "initialize":
                refusal = {"supported": [VERSION], "requested": "2025-11-25"}
                reply["error"] = {"code": -32022, "message": "Unsupported", "data": refusal}
            else:
                result = server.answer(method, message.get("params") or {})
                if result is None:
                    continue
                reply["result"] = {"resultType": "complete", **result} if MODERN else result
        except ValueError:
            reply["error"] = {"code": -32603, "message": "no luck"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
