"""The bodies of HTTP requests: how much one may be, and how many large ones there are at once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.types import ErrorData, JSONRPCError
from mcp_types.jsonrpc import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.server.stdio import MAX_MESSAGE_BYTES, TOO_MANY, is_crowded
from bridge.upstream.framing import Line, encode

LARGE_BODY = 4 * 1024 * 1024
"""From here on a body counts as large. Only those with files are."""

MAX_LARGE = 4
"""Requests with a large body at once, of all clients. Each is in memory until it is answered."""

LARGE_SECONDS = 60.0
"""For a large body to come, or its sender would keep a place from others: 7 Mbit/s are enough."""


class Bodies:
    """Reads the body of each request within bounds, and hands its messages on.

    Args:
        guard: Whose requests are taken; of others nothing is read.
    """

    def __init__(self, app: ASGIApp, guard: TransportSecuritySettings) -> None:
        self._app = app
        self._guard = TransportSecurityMiddleware(guard)
        self._large = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        refusal = await self._guard.validate_request(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            async with self._reading(scope, receive) as body:
                if await is_crowded(Line(body)):
                    raise _Refused(400, TOO_MANY)
                await self._app(scope, _replayed(body, receive), send)
        except _Refused as error:
            await error.response(scope, receive, send)

    @asynccontextmanager
    async def _reading(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the whole body; one that is large counts as long as it is used.

        Raises:
            _Refused: It is too large, one too many, or does not come.
        """
        large, deadline, more = False, math.inf, True
        body = bytearray()
        declared = Headers(scope=scope).get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        try:
            while more:
                if size > MAX_MESSAGE_BYTES:
                    problem = f"The message is too large; at most {MAX_MESSAGE_BYTES} bytes are "
                    raise _Refused(413, f"{problem}taken.")
                if size > LARGE_BODY and not large:
                    if self._large >= MAX_LARGE:
                        problem = f"{MAX_LARGE} requests of more than {LARGE_BODY} bytes are under "
                        raise _Refused(503, f"{problem}way. Try again.")
                    self._large += 1
                    large, deadline = True, anyio.current_time() + LARGE_SECONDS
                with anyio.CancelScope(deadline=deadline) as reading:
                    message = await receive()
                if reading.cancelled_caught:
                    problem = f"The message did not come within {LARGE_SECONDS:g} s, which one of "
                    raise _Refused(408, f"{problem}more than {LARGE_BODY} bytes has.")
                if message["type"] != "http.request":
                    raise _Refused(400, "The message did not come whole.")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                size = max(size, len(body))
            yield bytes(body)
        finally:
            self._large -= large


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body, and then what else comes."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _Refused(Exception):
    def __init__(self, status: int, problem: str) -> None:
        error = ErrorData(code=INVALID_REQUEST, message=problem)
        body = encode(JSONRPCError(jsonrpc="2.0", id=None, error=error))
        self.response = Response(body, status_code=status, media_type="application/json")
