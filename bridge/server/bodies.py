"""Reads the bodies of HTTP requests within bounds.

Wraps the SDK's application, which takes one message at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import anyio
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.types import ErrorData, JSONRPCError
from mcp_types.jsonrpc import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.server.stdio import MAX_MESSAGE_BYTES, NO_BATCHES, TOO_MANY, is_too_complex
from bridge.upstream.framing import Line, encode

LARGE_BODY = 4 * 1024 * 1024  # A larger body counts as large. Only requests with files have one.

MAX_LARGE = 4
"""Requests with a large body at once, of all clients. Each is in memory until it is answered."""

LARGE_SECONDS = 60.0
"""For a large body to arrive, so that a slow client does not block others; 7 Mbit/s are enough."""


_SINGLE = ("authorization", "origin", "mcp-session-id", "mcp-protocol-version", "content-type")
"""Headers that are sent once: of two, a proxy and the bridge might each believe another one."""


class Bodies:
    """Reads the body of each request within bounds, and passes its messages to the application.

    Args:
        guard: Allowed `Host` and `Origin` headers; other requests are refused unread.
    """

    def __init__(self, app: ASGIApp, guard: TransportSecuritySettings) -> None:
        self._app = app
        self._guard = TransportSecurityMiddleware(guard)
        self._large = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if repeated := [name for name in _SINGLE if len(sent.getlist(name)) > 1]:
            problem = f"The header {repeated[0]} was sent more than once."
            await refuse(400, problem)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        refusal = await self._guard.validate_request(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        large = False
        deadline = math.inf
        body = bytearray()
        try:
            declared = sent.get("content-length", "")
            size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
            more = True
            while more:
                size = max(size, len(body))
                if size > MAX_MESSAGE_BYTES:
                    problem = (
                        f"The message is too large; at most {MAX_MESSAGE_BYTES} bytes are taken."
                    )
                    await refuse(413, problem)(scope, receive, send)
                    return
                if size > LARGE_BODY and not large:
                    if self._large >= MAX_LARGE:
                        problem = (
                            f"{MAX_LARGE} requests of more than {LARGE_BODY} bytes are under way."
                        )
                        await refuse(503, f"{problem} Try again.")(scope, receive, send)
                        return
                    self._large += 1
                    large = True
                    deadline = anyio.current_time() + LARGE_SECONDS
                with anyio.CancelScope(deadline=deadline) as reading:
                    message = await receive()
                if reading.cancelled_caught:
                    problem = (
                        f"The message did not come within {LARGE_SECONDS:g} s, "
                        f"which one of more than {LARGE_BODY} bytes has."
                    )
                    await refuse(408, problem)(scope, receive, send)
                    return
                if message["type"] != "http.request":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
            await self._serve(bytes(body), scope, receive, send)
        finally:
            self._large -= large

    async def _serve(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if await is_too_complex(Line(body)):
            await refuse(400, TOO_MANY)(scope, receive, send)
            return
        if body[:1] == b"[":
            await refuse(400, NO_BATCHES.message)(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI `receive` that returns a body first, then calls `receive`."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def refuse(
    status: int, problem: str, code: int = INVALID_REQUEST, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a refusal of a request that was not passed on."""
    error = ErrorData(code=code, message=problem)
    body = encode(JSONRPCError(jsonrpc="2.0", id=None, error=error))
    return Response(body, status, headers, media_type="application/json")
