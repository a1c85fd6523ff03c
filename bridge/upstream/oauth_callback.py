"""Receives the browser's redirect at the end of a login: a listener on loopback.

Any page in the user's browsers and any program on this machine can connect. So a large or slow
request is dropped, a request without the login's secret state changes nothing, and texts of
requests are escaped.
"""

from __future__ import annotations

import asyncio
import html
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.upstream.oauth_web import safe_error_name, shorten

PATH = "/callback"

MAX_CONNECTIONS = 16  # Any program here may connect. A browser opens two or three at a time.

Host = Literal["127.0.0.1", "localhost"]

_HEADERS = {
    "Cache-Control": "no-store",
    # This page's address has the code, so no link may pass the address on.
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


@dataclass(frozen=True, kw_only=True)
class AuthorizationResponse:
    """The authorization server's response, as parameters of the browser's redirect."""

    state: str = field(repr=False)
    code: str = field(default="", repr=False)
    error: str = ""
    description: str = ""
    issuer: str | None = None


class Callback:
    """The receiver of one browser redirect, with the OAuth `state` that `expect` has set."""

    def __init__(self, host: Host, port: int) -> None:
        self.port, self.notice = port, ""  # Why the bridge registers again for this login.
        self.redirect_uri = f"http://{host}:{port}{PATH}"
        self._state = ""
        self._response: AuthorizationResponse | None = None
        self._received = anyio.Event()

    def expect(self, state: str) -> None:
        """Accept one response with `state`. Before this call no response is accepted."""
        self._state = state

    async def wait(self) -> AuthorizationResponse:
        await self._received.wait()
        if self._response is None:
            raise AssertionError
        return self._response

    async def handle(self, request: Request) -> HTMLResponse:
        """Return the page for a request; accept its response if it is the expected one."""
        query = request.query_params
        # A repeated parameter is a mistake or an attack.
        parameters = {name: query[name] for name in query if len(query.getlist(name)) == 1}
        state = parameters.get("state", "").encode("utf-8", "replace")
        if not self._state or not secrets.compare_digest(state, self._state.encode()):
            text = (
                "This answer does not belong to the login that is under way. Nothing was changed. "
                "Use the address that the terminal shows now."
            )
            return _page(400, "Not this login", text)
        if self._response is not None:
            text = "This login is over. To log in again, start a new one."
            return _page(410, "Already used", text)
        code, error = parameters.get("code", ""), ""
        if "error" in parameters:
            code, error = "", safe_error_name(parameters["error"]) or "an error without a name"
        elif not code:
            return _page(400, "Not understood", "This is no request that can be answered.")
        description = parameters.get("error_description", "") if error else ""
        self._response = AuthorizationResponse(
            state=self._state,
            code=code,
            error=error,
            description=shorten(description),
            issuer=parameters.get("iss"),
        )
        self._received.set()
        if not error:
            text = "You can close this page. The terminal says whether all went well."
            return _page(200, "Logged in", text)
        text = f"The server said: {error}. {self._response.description} You can close this page."
        return _page(200, "Not logged in", text)


class _BriefConnection(H11Protocol):
    """A connection that is closed after ten seconds, more than a login needs."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        self.loop.call_later(10.0, transport.abort)


@asynccontextmanager
async def listen(host: Host = "127.0.0.1", port: int = 0) -> AsyncIterator[Callback]:
    """Listen on loopback for the browser's redirect; raises OSError if the port is taken."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        callback = Callback(host, listener.getsockname()[1])
        app = Starlette(
            routes=[Route(PATH, callback.handle, methods=["GET"])],
            # Refuses pages of other hosts whose names resolve to this machine (DNS rebinding).
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
            ],
        )
        config = uvicorn.Config(app, **_OPTIONS)
        server = uvicorn.Server(config)
        # Not `serve`, which installs its own signal handlers.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        try:
            yield callback
        finally:
            with anyio.CancelScope(shield=True):
                await server.shutdown([listener])


_OPTIONS: dict[str, Any] = {
    "http": _BriefConnection,
    "ws": "none",
    "lifespan": "off",
    "log_config": None,
    "log_level": "warning",
    # An access log would contain codes.
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    # Codes may have a few thousand bytes, and a browser adds cookies.
    "h11_max_incomplete_event_size": 32 * 1024,
    "timeout_graceful_shutdown": 1,
}


def _page(status: int, title: str, text: str) -> HTMLResponse:
    title, text = html.escape(title), html.escape(text)
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>{text}</p></html>"
    )
    return HTMLResponse(body, status, _HEADERS)
