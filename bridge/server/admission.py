"""Admits HTTP requests: who sends one, and whether that caller's share has room for it.

A caller is known by the bridge's own token, by what a proxy lets it authorise itself with, and on a
Unix socket by its user id. A caller has at most half of each of `BOUNDS`. Connections without a
token share a small part: of them the oldest gives way to the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import struct
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import Any

import anyio
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.types import ErrorData, JSONRPCError
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.server.stdio import MAX_MESSAGE_BYTES, NO_BATCHES, TOO_MANY, is_too_complex
from bridge.upstream.framing import Line, encode

BOUNDS: dict[str, int] = {
    "connections": 512,
    "connections without a token": 64,
    "bytes of requests": 4 * MAX_MESSAGE_BYTES,
    "sessions": 512,
}
"""What all callers share. A session takes some forty kilobytes while its client does nothing. The
bytes of a request are in memory until it is answered."""

BODY_SECONDS = 60.0  # For a body to arrive: a client may send it as slowly as it likes.

_SINGLE = ("authorization", "origin", "mcp-session-id", "mcp-protocol-version", "content-type")
"""Headers that are sent once: of two, a proxy and the bridge might each believe another one."""

_SESSION = "mcp-session-id"


class RequestMiddleware:
    """Passes on the requests for which their caller has a share, with their bodies read.

    Args:
        guard: Allowed `Host` and `Origin` headers; other requests are refused.
        token: What requests have to carry; empty for nothing.
        probe: Returns the answer to a probe, which needs no token.

    Attributes:
        connections: All that are open, the oldest first.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: TransportSecuritySettings,
        token: str = "",
        probe: Callable[[Scope], Response | None] = lambda scope: None,
        sessions: Callable[[], Container[str]] = frozenset,
    ) -> None:
        self._app = app
        self._guard = TransportSecurityMiddleware(guard)
        self._token = token
        self._probe = probe
        self._open_sessions = sessions
        self._sessions: dict[str, str] = {}
        self._beginning: dict[int, str] = {}  # By request, until its session has a name.
        self._bytes: Counter[str] = Counter()
        self.connections: dict[HttpConnection, None] = {}

    def accept(self, connection: HttpConnection) -> None:
        """Count a connection; one of those without a token ends if there are too many of these."""
        self.connections[connection] = None
        if connection.caller:
            return
        unknown = [each for each in self.connections if not each.caller]
        if len(unknown) > BOUNDS["connections without a token"]:
            # Also one whose answer is not read, which would stay busy.
            del self.connections[unknown[0]]
            unknown[0].transport.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (probe := self._probe(scope)) is not None:
            await probe(scope, receive, send)
            return
        headers = Headers(scope=scope)
        connection = scope.get("state", {}).get("connection")
        sender = self._caller(headers, connection)
        caller = sender or ""
        refusal = await self._guard.validate_request(Request(scope))
        if repeated := [name for name in _SINGLE if len(headers.getlist(name)) > 1]:
            refusal = refuse(400, f"The header {repeated[0]} was sent more than once.")
        elif refusal is None:
            refusal = self._refusal(headers, sender, connection)
        if refusal is not None:
            refusal.headers["connection"] = "close"
            # A reset for unread bytes would take the answer from a client that sends a small body.
            with anyio.move_on_after(1.0):
                await receive()
            await refusal(scope, receive, send)
            return
        if begins_session(headers):
            self._beginning[id(scope)] = caller
        try:
            if scope["method"] == "POST":
                await self._serve(caller, headers, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            self._beginning.pop(id(scope), None)
            self._bytes -= Counter({caller: scope.get("bridge.bytes", 0)})

    def _caller(self, headers: Headers, connection: HttpConnection | None) -> str | None:
        """Return who sends a request; None without the token that it needs."""
        given = headers.get("authorization", "")
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        if connection is not None and connection.user:
            # All callers of a proxy have its user id.
            return f"{connection.user} {digest.hex()}" if given else connection.user
        if self._token:
            wanted = hashlib.sha256(f"Bearer {self._token}".encode()).digest()
            return "token" if hmac.compare_digest(digest, wanted) else None
        return digest.hex() if given else "anyone"

    def _refusal(
        self, headers: Headers, caller: str | None, connection: HttpConnection | None
    ) -> Response | None:
        if caller is None:
            problem = (
                "This bridge wants its token, as `Authorization: Bearer TOKEN`: "
                "`mcp-code-bridge install CLIENT --http URL` writes it into a client's file."
            )
            return refuse(401, problem, headers={"www-authenticate": "Bearer"})
        if connection is not None:
            connection.caller = caller
            held = sum(each.caller == caller for each in self.connections)
            if problem := _problem("connections", held, len(self.connections)):
                return refuse(503, problem)
        if begins_session(headers):
            still = self._open_sessions()
            self._sessions = {name: of for name, of in self._sessions.items() if name in still}
            owners = [*self._sessions.values(), *self._beginning.values(), caller]
            if problem := _problem("sessions", owners.count(caller), len(owners)):
                return refuse(503, problem)
        return None

    async def _serve(
        self, caller: str, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        declared = headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        deadline = anyio.current_time() + BODY_SECONDS
        body, more = bytearray(), True
        while more:
            if max(size, len(body)) > MAX_MESSAGE_BYTES:
                problem = f"The message is too large; at most {MAX_MESSAGE_BYTES} bytes are taken."
                await refuse(413, problem)(scope, receive, send)
                return
            with anyio.CancelScope(deadline=deadline) as reading:
                message = await receive()
            if reading.cancelled_caught:
                problem = f"The message did not arrive within {BODY_SECONDS:g} s."
                await refuse(408, problem)(scope, receive, send)
                return
            if message["type"] != "http.request":
                return
            part = message.get("body", b"")
            self._bytes[caller] += len(part)
            scope["bridge.bytes"] = scope.get("bridge.bytes", 0) + len(part)
            held = self._bytes[caller]
            if problem := _problem("bytes of requests", held, self._bytes.total()):
                await refuse(503, problem)(scope, receive, send)
                return
            body += part
            more = message.get("more_body", False)
        line = bytes(body)
        if await is_too_complex(Line(line)):
            await refuse(400, TOO_MANY)(scope, receive, send)
        elif line[:1] == b"[":
            await refuse(400, NO_BATCHES.message)(scope, receive, send)
        else:
            await self._app(
                scope, _replay(line, receive), self._with_session_noted(caller, scope, send)
            )

    def _with_session_noted(self, caller: str, scope: Scope, send: Send) -> Send:
        async def note_session(message: Message) -> None:
            if message["type"] == "http.response.start":
                session = Headers(raw=message["headers"]).get(_SESSION, "")
                if name := session.rpartition(".")[2]:
                    self._sessions.setdefault(name, caller)
                    self._beginning.pop(id(scope), None)
            await send(message)

        return note_session


def begins_session(headers: Headers) -> bool:
    """Whether a request may begin a session of the protocol."""
    version = headers.get("mcp-protocol-version")
    return _SESSION not in headers and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)


def _problem(what: str, held: int, total: int) -> str:
    """Return why there is no room for one caller's next; empty if there is."""
    most = BOUNDS[what]
    if held > most // 2:
        return f"Too many open {what}: the limit of one caller is {most // 2}. Try again."
    return f"Too many open {what}: the limit is {most}. Try again." if total > most else ""


def _replay(body: bytes, receive: Receive) -> Receive:
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
    error = ErrorData(code=code, message=problem)
    body = encode(JSONRPCError(jsonrpc="2.0", id=None, error=error))
    return Response(body, status, headers, media_type="application/json")


HEAD_SECONDS = 10.0  # For the head of a request to arrive: a client may never send it.


class HttpConnection(H11Protocol):
    """One connection; it ends if the head of a request does not arrive in time.

    Attributes:
        caller: Whose it is; empty until a request with a token came.
        user: The user id at its other end, if it is a Unix socket's.
    """

    def __init__(self, admission: RequestMiddleware, **others: Any) -> None:
        super().__init__(**others)
        self.app_state = {**self.app_state, "connection": self}
        self.caller = self.user = ""
        self._admission = admission
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED"):
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.caller = self.user = f"uid {struct.unpack('3i', found)[1]}"
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.abort)
        self._admission.accept(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self.busy and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._admission.connections.pop(self, None)
        super().connection_lost(exc)
