"""Admits HTTP requests: identifies the caller and applies its share of `BOUNDS`, half of each.

The bridge's token, credentials for a proxy or a Unix socket's user id identify a caller. If too
many connections have no token, the oldest of them is closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, ErrorData, JSONRPCError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.background_instance import peer_user
from bridge.errors import BridgeError
from bridge.event_loop import exposition
from bridge.gate.audit.reading import end_orphans
from bridge.runs import Engine
from bridge.server.stdio import MAX_MESSAGE_BYTES, NO_BATCHES, TOO_MANY, is_too_complex
from bridge.settings import store_of
from bridge.upstream.framing import encode

logger = logging.getLogger(__name__)

BOUNDS: dict[str, int] = {
    "connections": 512,
    "connections without a token": 64,
    "bytes of requests": 4 * MAX_MESSAGE_BYTES,
    "sessions": 512,
}
"""The limits for all callers together. An idle session takes 40 kB. A request's bytes stay in
memory until its response."""

BODY_SECONDS = 60.0  # For a body to arrive: a slow client must not hold its share.

_SINGLE = ("authorization", "origin", "mcp-session-id", "mcp-protocol-version", "content-type")
"""Headers that must not repeat: a proxy and the bridge might each use another value."""

REPLICA = "mcp-bridge-replica"
"""The response header that names the replica which answers, or which has the session."""

SESSION = "mcp-session-id"

LOOK_SECONDS = 1.0  # Between health checks.
LOOK_DEADLINE = 10.0  # Seconds of one.

_NEEDED = ("sandboxes", "store")
_ORPHANS = "ends of dead replicas' runs"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62})\.[0-9a-f]{32}")


class Replica:
    """The health, probes and name of one bridge among several that serve HTTP as one service.

    The probes (`/healthz`, `/readyz`, `/metrics`) need no token and contain no secret. The name is
    in each response and in the ids of MCP sessions, which no other replica can continue.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.settings.replica
        self._store = store_of(engine.settings)
        self._problems = dict.fromkeys(_NEEDED, "not checked yet")

    async def tend(self) -> None:
        """Check health once a second and end the runs of dead replicas, until cancelled.

        Probes only read the last check. The first check selects the backend.
        """
        async with anyio.create_task_group() as tasks:
            # One each, so that none waits for another that hangs.
            for what in (*_NEEDED, _ORPHANS):
                tasks.start_soon(self._watch, what)

    async def _watch(self, what: str) -> None:
        while True:
            try:
                problem = await self._look(what)
            except (BridgeError, OSError) as error:
                problem = str(error)
            # Logged once: a line each second would fill a disk.
            if problem and problem != self._problems.get(what):
                logger.warning("%s: %s", what, problem)
            self._problems[what] = problem
            await anyio.sleep(LOOK_SECONDS)

    async def drain(self) -> None:
        """Refuse new runs, and return when the running ones have ended or at the deadline."""
        logger.info("draining: no more runs begin here")
        suspended = self._engine.suspended
        seconds = self._engine.settings.drain_seconds
        await self._engine.running_runs.drain(seconds, lambda: suspended.live > 0)

    @property
    def missing(self) -> list[str]:
        """What this lacks to start runs, in one word each: public."""
        missing = [name for name in _NEEDED if self._problems[name]]
        missing += self._engine.heartbeat.problems
        return [*missing, *(["draining"] if self._engine.running_runs.draining else [])]

    @property
    def impaired(self) -> list[str]:
        """What this lacks for some runs. Other bridges lack it too, so this one stays ready."""
        return ["store"] if self._engine.heartbeat.silence else []

    async def _look(self, what: str) -> str:
        """Return the problem of one part; empty if there is none."""
        # The first use of a backend may fetch an image, for minutes.
        backend = await self._engine.sandboxes.backend() if what == "sandboxes" else None
        with anyio.move_on_after(LOOK_DEADLINE):
            if backend is not None:
                return await backend.problem()
            if what == _ORPHANS:
                await end_orphans(self._engine.gate.audit)
            elif not self._store.shared:
                read = partial(self._store.documents, "ready", [""])
                await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
            return ""
        return f"it did not answer within {LOOK_DEADLINE:g} s"

    def probe(self, scope: Scope) -> Response | None:
        """Return the response to a probe; None for other requests."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        match scope["path"]:
            case "/healthz":
                return PlainTextResponse("ok\n")
            case "/metrics":
                text = exposition(self._gauges())
                return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
            case "/readyz":
                missing = self.missing
                body = {"ready": not missing, "replica": self.name, "missing": missing}
                body["impaired"] = self.impaired
                status = 503 if missing else 200
                return Response(json.dumps(body), status, media_type="application/json")
            case _:
                return None

    def _gauges(self) -> dict[str, tuple[str, int]]:
        engine, store = self._engine, self._problems["store"] or self._engine.heartbeat.silence
        return {
            "runs_queued": ("Runs that wait for a slot.", engine.queue.waiting),
            "runs_running": ("Taken slots.", engine.queue.taken),
            "sandboxes_waiting": ("Warm sandboxes.", engine.sandboxes.report.waiting),
            "sessions_unsaved": ("Sessions with unsaved state.", engine.sessions.unsaved),
            "store_up": ("Whether the store can be used.", int(not store)),
            "draining": ("Whether this bridge ends.", int(engine.running_runs.draining)),
        }

    def route(self, scope: Scope, headers: Headers) -> tuple[Scope, Response | None]:
        """Remove this replica's name from a request's session id, or refuse another replica's."""
        session = headers.get(SESSION)
        begins = begins_session(headers) and scope["method"] == "POST"
        if begins and self._engine.running_runs.draining:
            problem = "This replica of the bridge is ending. Begin the session on another one."
            retry = {"retry-after": "5", REPLICA: self.name}
            return scope, refuse(503, problem, INTERNAL_ERROR, retry)
        named = _NAMED.fullmatch(session) if session is not None and self.name else None
        if named is None or session is None:
            return scope, None
        if named[1] != self.name:
            problem = (
                f"Session not found: replica {named[1]!r} of the bridge began it, and this is "
                f"{self.name!r}. Send its requests there, or begin a new session."
            )
            return scope, refuse(404, problem, headers={REPLICA: named[1]})
        own, name = session.rpartition(".")[2].encode(), SESSION.encode()
        pairs = [(key, own if key == name else value) for key, value in scope["headers"]]
        return {**scope, "headers": pairs}, None


@dataclass(eq=False, repr=False)
class RequestMiddleware:
    """Middleware that refuses requests beyond their caller's share, and reads bodies.

    Requests other than probes need the token; an empty one admits all.
    """

    _app: ASGIApp
    _settings: TransportSecuritySettings
    _token: str
    _replica: Replica | None
    _open_sessions: Callable[[], Container[str]]

    def __post_init__(self) -> None:
        self._guard = TransportSecurityMiddleware(self._settings)
        self._sessions: dict[str, str] = {}
        self._beginning: dict[int, str] = {}  # By request, until its session has an id.
        self._bytes: Counter[str] = Counter()
        self.connections: dict[HttpConnection, None] = {}  # The oldest first.

    def accept(self, connection: HttpConnection) -> None:
        """Count a connection; close the oldest without a token if there are too many of them."""
        self.connections[connection] = None
        if connection.caller:
            return
        unknown = [each for each in self.connections if not each.caller]
        if len(unknown) > BOUNDS["connections without a token"]:
            # Also a busy one: its client may never read the response.
            del self.connections[unknown[0]]
            unknown[0].transport.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._replica is not None and (probe := self._replica.probe(scope)) is not None:
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
            # Closing with unread bytes resets the connection, and the client loses the response.
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
                await self._pass_on(caller, scope, receive, send)
        finally:
            self._beginning.pop(id(scope), None)
            self._bytes -= Counter({caller: scope.get("bridge.bytes", 0)})

    def _caller(self, headers: Headers, connection: HttpConnection | None) -> str | None:
        """Return the caller; None if the request lacks the token."""
        given = headers.get("authorization", "")
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        if connection is not None and connection.user:
            # All callers behind a proxy have the proxy's user id.
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
            if problem := _problem("bytes of requests", self._bytes[caller], self._bytes.total()):
                await refuse(503, problem)(scope, receive, send)
                return
            body += part
            more = message.get("more_body", False)
        line = bytes(body)
        if await is_too_complex(line):
            await refuse(400, TOO_MANY)(scope, receive, send)
        elif line[:1] == b"[":
            await refuse(400, NO_BATCHES.message)(scope, receive, send)
        else:
            await self._pass_on(caller, scope, _replay(line, receive), send)

    async def _pass_on(self, caller: str, scope: Scope, receive: Receive, send: Send) -> None:
        request, name = id(scope), ""
        if self._replica is not None:
            name = self._replica.name
            scope, refusal = self._replica.route(scope, Headers(scope=scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return

        async def note_session(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                session = headers.get(SESSION)
                if session:
                    self._sessions.setdefault(session, caller)
                    self._beginning.pop(request, None)
                if name:
                    headers[REPLICA] = name
                if name and session:
                    headers[SESSION] = f"{name}.{session}"
            await send(message)

        await self._app(scope, receive, note_session)


def begins_session(headers: Headers) -> bool:
    version = headers.get("mcp-protocol-version")
    return SESSION not in headers and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)


def _problem(what: str, held: int, total: int) -> str:
    """Return which limit is exceeded; empty if none is."""
    most = BOUNDS[what]
    if held > most // 2:
        return f"Too many open {what}: the limit of one caller is {most // 2}. Try again."
    return f"Too many open {what}: the limit is {most}. Try again." if total > most else ""


def _replay(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def refuse(
    status: int, problem: str, code: int = INVALID_REQUEST, headers: Mapping[str, str] | None = None
) -> Response:
    error = ErrorData(code=code, message=problem)
    body = encode(JSONRPCError(jsonrpc="2.0", id=None, error=error))
    return Response(body, status, headers, media_type="application/json")


HEAD_SECONDS = 10.0  # For the head of a request to arrive.


class HttpConnection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time.

    `caller` is empty until a request with a token arrives, or is the `user` of a Unix socket.
    """

    def __init__(self, admission: RequestMiddleware, **others: Any) -> None:
        super().__init__(**others)
        self.app_state = {**self.app_state, "connection": self}
        self.caller = self.user = ""
        self._admission = admission
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        is_local = peer is not None and peer.family == socket.AF_UNIX
        if is_local and (user := peer_user(peer)) is not None:
            self.caller = self.user = f"uid {user}"
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.abort)
        self._admission.accept(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        busy = cycle is not None and not cycle.response_complete
        if busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not busy and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._admission.connections.pop(self, None)
        super().connection_lost(exc)
