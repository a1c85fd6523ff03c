"""Serves clients over streamable HTTP, on the loopback interface or a Unix socket."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from bridge.errors import UsageError
from bridge.event_loop import background_task
from bridge.runs import Engine
from bridge.server.admission import BOUNDS, HttpConnection, Replica, RequestMiddleware
from bridge.server.app import build_server
from bridge.server.resources import NotifyingServer
from bridge.server.stdio import MAX_MESSAGE_BYTES

SHUTDOWN_SECONDS = 3  # For running requests when the server stops; then they are cancelled.

IDLE_SECONDS = 30 * 60  # Until an unused session over HTTP ends, or an unused background bridge.


class HttpServer(uvicorn.Server):
    """Serves the bridge over HTTP; at its end it waits for requests, but not for streams.

    The host is a name or address of this machine, or the path of a Unix socket.
    """

    def __init__(
        self,
        server: NotifyingServer,
        host: str,
        port: int,
        replica: Replica | None = None,
        token: str = "",
    ) -> None:
        self._address = (host, port)
        self._listeners: list[socket.socket] = []
        self._notices = server.notices
        # Nothing is allowed before the port is known.
        self._guard = TransportSecuritySettings()
        app = server.streamable_http_app(
            host=host,
            transport_security=self._guard,
            max_sessions=BOUNDS["sessions"],
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=MAX_MESSAGE_BYTES,
        )
        self._streams: set[anyio.CancelScope] = set()
        admission = RequestMiddleware(
            partial(self._answer, app),
            self._guard,
            token,
            replica,
            lambda: server.session_manager._server_instances,
        )
        config = uvicorn.Config(
            admission,
            http=partial(HttpConnection, admission),  # type: ignore[arg-type]  # it makes one
            ws="none",
            log_config=None,  # The bridge's own log counts repeated lines.
            log_level="warning",
            access_log=False,
            lifespan="on",
            backlog=16,  # Accepted at once: a connection takes a descriptor before it is counted.
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        host, port = self._address
        if "/" in host:
            address = f"unix:{host}"
            self._listeners = [unix_listener(Path(host))]
            found = guard("localhost", 80)
        else:
            self._listeners = listeners(host, port)
            port = self._listeners[0].getsockname()[1]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
            found = guard(host, port)
        self._guard.allowed_hosts = found.allowed_hosts
        self._guard.allowed_origins = found.allowed_origins
        await super().startup(self._listeners)
        for each in self._listeners:
            each.listen(socket.SOMAXCONN)  # More connections than `backlog` may wait.
        print(f"Serving {address}", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Close the listening sockets, also of a server that was cancelled while it started."""
        for each in self._listeners:
            each.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command, which drains first or cancels the server."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and wait for the running ones."""
        self._notices.end_streams()
        for stream in self._streams:
            stream.cancel()
        await super().shutdown(self._listeners)
        if "/" in self._address[0]:
            await anyio.Path(self._address[0]).unlink(missing_ok=True)

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; end the stream of a GET (earlier protocols) with the server."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await app(scope, receive, send)
            return
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await app(scope, receive, send)
            finally:
                self._streams.discard(stream)
        if stream.cancelled_caught:
            await send({"type": "http.response.body", "body": b""})


async def serve_http(
    engine: Engine, host: str, port: int, ending: anyio.Event, token: str = ""
) -> None:
    """Serve any number of clients at `http://HOST:PORT/mcp` until cancelled.

    Once `ending` is set, no more runs start, and this returns when the last has ended.
    """
    replica = Replica(engine)
    server = HttpServer(build_server(engine), host, port, replica, token)

    async def end() -> None:
        await ending.wait()
        await replica.drain()
        server.should_exit = True

    try:
        async with background_task(replica.tend), background_task(end):
            await server.serve()
    except anyio.get_cancelled_exc_class():
        if server.started:
            # Enough to end the clients' streams properly.
            with anyio.move_on_after(0.5, shield=True):
                await server.shutdown()
        raise
    finally:
        server.close()


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to all addresses of a host, on one port; 0 takes a free one."""
    try:
        addresses: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    with ExitStack() as stack:
        bound: list[socket.socket] = []
        failure: OSError | None = None
        for family, _, _, _, address in addresses:
            try:
                if bound:
                    address = (address[0], bound[0].getsockname()[1], *address[2:])
                bound.append(stack.enter_context(socket.create_server(address, family=family)))
            except OSError as error:
                # A machine without IPv6 has only one of the addresses of `localhost`.
                if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    raise _cannot_listen(host, port, error) from None
                failure = error
        if not bound:
            raise _cannot_listen(host, port, failure or OSError("it has no address"))
        stack.pop_all()
        return bound


def unix_listener(path: Path) -> socket.socket:
    """Return a Unix socket that only this user can connect to; replace a dead bridge's."""
    with ExitStack() as stack:
        try:
            quiet = suppress(FileNotFoundError, ConnectionRefusedError)
            with socket.socket(socket.AF_UNIX) as there, quiet:
                there.connect(str(path))
                raise UsageError(f"Another process listens on {path}.")
            if path.is_socket():
                path.unlink()
            made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            mask = os.umask(0o177)
            try:
                made.bind(str(path))
            finally:
                os.umask(mask)
        except OSError as error:
            raise UsageError(f"{path} cannot be listened on: {error.strerror or error}.") from None
        stack.pop_all()
        return made


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        message = f"Port {port} of {host} is taken by another process."
        return UsageError(message, remedy="Give another port, or end what listens there.")
    return UsageError(f"{host} port {port} cannot be listened on: {error.strerror or error}.")


def guard(host: str, port: int) -> TransportSecuritySettings:
    """Return the allowed `Host` and `Origin` headers: a web page must not reach the bridge.

    Ports are explicit: for a pattern with any port, the SDK compares only the beginning, and takes
    `localhost:1.evil.example` for `localhost`.
    """
    shown = f"[{host}]" if ":" in host else host
    names = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", shown))
    addresses = [f"{name}:{port}" for name in names]
    if port == 80:
        # Clients omit the default port.
        addresses += names
    return TransportSecuritySettings(
        allowed_hosts=addresses, allowed_origins=[f"http://{address}" for address in addresses]
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT"; for "unix:PATH" the path and 0."""
    if text.startswith("unix:/"):
        return text.removeprefix("unix:"), 0
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8765, nor unix:/PATH.")
    host = match[1] or match[2]
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not loopback:
        message = (
            f"{host} can be reached from other machines, and anyone who reaches the bridge can run "
            "code and use your servers."
        )
        raise UsageError(message, remedy="Bind to 127.0.0.1 and put an authenticating proxy ahead.")
    return host, int(match[3])
