"""What one of several bridges, serving HTTP as one service, tells of itself.

Owns the probes (`/healthz`, `/readyz`, `/metrics`), which need no authentication, cost next to
nothing and tell no secret; and the replica's name: in every answer, and in the ids of MCP sessions,
which are in the memory of the replica that began them.
"""

from __future__ import annotations

import json
import logging
import re
from functools import partial

import anyio
import anyio.to_thread
from mcp_types import INTERNAL_ERROR
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.errors import BridgeError
from bridge.gate.audit.orphans import end_orphans
from bridge.runs import Engine
from bridge.server.admission import begins_session, refuse
from bridge.settings import store_of

logger = logging.getLogger(__name__)

REPLICA = "mcp-bridge-replica"
"""The response header with the name of the replica that answers, or that has what was asked for."""

SESSION = "mcp-session-id"

LOOK_SECONDS = 1.0  # Between looks at what is missing, and at what dead replicas left.

_NEEDED = ("sandboxes", "store")
_ORPHANS = "ends of dead replicas' runs"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62})\.[0-9a-f]{32}")


class Replica:
    """One of the bridges; wraps the application that serves MCP."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.settings.replica
        self._store = store_of(engine.settings)
        self._problems = dict.fromkeys(_NEEDED, "not looked at yet")

    async def tend(self) -> None:
        """See what is missing, and to the runs of dead replicas, until cancelled.

        However often readiness is asked for, this alone looks. It chooses the backend ahead of the
        first run.
        """
        while True:
            for what in (*_NEEDED, _ORPHANS):
                try:
                    problem = await self._look(what)
                except (BridgeError, OSError) as error:
                    problem = str(error)
                # Each is told once, however often it is looked at.
                if problem and problem != self._problems.get(what):
                    logger.warning("%s: %s", what, problem)
                self._problems[what] = problem
            await anyio.sleep(LOOK_SECONDS)

    async def drain(self) -> None:
        """Let no more runs begin, and return when none is left or the deadline is over."""
        logger.info("draining: no more runs begin here")
        suspended = self._engine.suspended
        seconds = self._engine.settings.drain_seconds
        await self._engine.under_way.drain(seconds, lambda: suspended.live > 0)

    @property
    def missing(self) -> list[str]:
        """What this lacks to begin runs, in one word each: everybody may read it."""
        missing = [name for name in _NEEDED if self._problems[name]]
        return [*missing, *(["draining"] if self._engine.under_way.draining else [])]

    async def _look(self, what: str) -> str:
        """Return what is wrong with one of the things that are looked at; empty for nothing."""
        if what == "sandboxes":
            return await (await self._engine.backend()).problem()
        if what == _ORPHANS:
            await end_orphans(self._engine.gate.audit)
            return ""
        with anyio.move_on_after(2.0):
            read = partial(self._store.documents, "ready", [""])
            await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
            return ""
        return "it does not answer within 2 s"

    def metrics(self) -> str:
        queue = self._engine.queue
        values = {
            "runs_queued": queue.waiting,
            "runs_running": queue.taken,
            "sandboxes_waiting": self._engine.sandboxes.report.waiting,
            "draining": int(self._engine.under_way.draining),
        }
        lines = [
            f"# TYPE mcp_code_bridge_{name} gauge\nmcp_code_bridge_{name} {value}\n"
            for name, value in values.items()
        ]
        return "".join(lines)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return an application that names the replica in its answers."""
        return partial(self._serve, app)

    def probe(self, scope: Scope) -> Response | None:
        """Return the answer to a probe; None for any other request."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        match scope["path"]:
            case "/healthz":
                return PlainTextResponse("ok\n")
            case "/metrics":
                return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")
            case "/readyz":
                missing = self.missing
                body = {"ready": not missing, "replica": self.name, "missing": missing}
                status = 503 if missing else 200
                return Response(json.dumps(body), status, media_type="application/json")
            case _:
                return None

    async def _serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(SESSION)
        begins = begins_session(headers) and scope["method"] == "POST"
        if begins and self._engine.under_way.draining:
            problem = "This replica of the bridge is ending. Begin the session again: another has."
            retry = {"retry-after": "5", REPLICA: self.name}
            await refuse(503, problem, INTERNAL_ERROR, retry)(scope, receive, send)
            return
        if session is not None and self.name and (named := _NAMED.fullmatch(session)):
            if named[1] != self.name:
                problem = (
                    f"Session not found: replica {named[1]!r} of the bridge began it, and this is "
                    f"{self.name!r}. Send its requests there, or begin a new session."
                )
                where = {REPLICA: named[1]}
                await refuse(404, problem, headers=where)(scope, receive, send)
                return
            own, name = session.rpartition(".")[2].encode(), SESSION.encode()
            pairs = [(key, own if key == name else value) for key, value in scope["headers"]]
            scope = {**scope, "headers": pairs}
        await app(scope, receive, self._with_name(send) if self.name else send)

    def _with_name(self, send: Send) -> Send:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REPLICA] = self.name
                if session := headers.get(SESSION):
                    headers[SESSION] = f"{self.name}.{session}"
            await send(message)

        return send_named
