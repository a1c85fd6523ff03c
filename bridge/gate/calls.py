"""The path every request of a program to a server takes.

Owns deciding whether a call may happen, counting it, and making it. Each run has its own `Gate`,
made with what that run is allowed; nothing a guest sends can widen it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bridge.errors import CallBudgetError, CallDeniedError
from bridge.model import Json

LARGE_CHARACTERS = 64 * 1024
"""A text from here on is not counted as JSON, with what that escapes, but as it is."""

_TEXT = json.JSONEncoder(ensure_ascii=False)

Request = Callable[[], Awaitable[dict[str, Json]]]

CallTool = Callable[[str, str, Mapping[str, Json]], Awaitable[dict[str, Json]]]


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one run may do. `servers` is None when it may use every discovered server."""

    servers: frozenset[str] | None
    calls: int


class Gate:
    """Decides, counts and makes the calls of one run."""

    def __init__(self, grant: Grant, call_tool: CallTool) -> None:
        self._grant = grant
        self._call_tool = call_tool
        self._asked = 0
        self.calls = 0
        self.result_bytes = 0

    def may_use(self, server: str) -> bool:
        """Whether the run was given this server."""
        return self._grant.servers is None or server in self._grant.servers

    def admit(self, server: str | None = None) -> None:
        """Count one question of the program's, on a server if it names one.

        Raises:
            CallDeniedError: The run was not given this server.
            CallBudgetError: The run has asked all that it may.
        """
        if server is not None and not self.may_use(server):
            allowed = ", ".join(sorted(self._grant.servers or ())) or "none"
            message = f"This run may not use the server {server!r}. It may use: {allowed}."
            raise CallDeniedError(message)
        if self._asked >= self._grant.calls:
            message = f"This run has made all of the {self._grant.calls:,} calls it may make."
            raise CallBudgetError(message)
        self._asked += 1

    async def call(self, server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """Make the call and return the raw `CallToolResult`.

        Raises:
            CallDeniedError: The run was not given this server.
            CallBudgetError: The run is out of calls.
            UpstreamError: The server could not do it.
        """
        request = partial(self._call_tool, server, tool, arguments)
        return await self.obtain(server, request, "content")

    async def obtain(self, server: str, request: Request, part: str) -> dict[str, Json]:
        """Make a request, a call of a tool or of another kind; all count alike.

        Args:
            part: Where in the answer is what it would have put into a conversation.

        Raises:
            CallDeniedError: The run was not given this server.
            CallBudgetError: The run is out of calls.
            UpstreamError: The server could not do it.
        """
        self.admit(server)
        self.calls += 1
        result = await request()
        self.result_bytes += result_size(result, part)
        return result


def result_size(result: Mapping[str, Json], part: str = "content") -> int:
    """Return the bytes of text that `result` would have put into a conversation."""
    content = result.get(part, [])
    large = 0
    if isinstance(content, list):
        small = []
        for block in content:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str) and len(text) >= LARGE_CHARACTERS:
                # Counted as it is: to write it as JSON only to count takes as long as to move it.
                large += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                small.append({**block, "text": ""})
            else:
                small.append(block)
        content = small
    return large + len(_TEXT.encode(content).encode("utf-8", "replace"))
