"""How clients reach the server: stdio, or streamable HTTP on the loopback interface."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Callable

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from bridge.engine import Engine
from bridge.errors import UsageError
from bridge.server.app import build_server
from bridge.server.stdin import StdinMessages, claimed_stdin
from bridge.server.stdout import StdoutMessages, claimed_stdout

logger = logging.getLogger(__name__)

STDIO = "stdio"
"""Whose runs are those of the one client there is; over HTTP clients cannot be told apart."""

SHUTDOWN_SECONDS = 3
"""Runs still under way when the server stops are cancelled after this."""

LAST_SECONDS = 0.5
"""The same for a server that is cancelled, as by a signal to `serve`: its end is waited for. It is
enough to tell those who listen that there is nothing more to come."""


async def serve_stdio(engine: Engine) -> None:
    """Serve one client on stdin and stdout until it closes stdin."""
    server = build_server(engine, principal=STDIO)
    options = server.create_initialization_options()
    over = anyio.CancelScope()
    with claimed_stdout() as out, claimed_stdin() as into:
        writer = StdoutMessages(out, over)
        with over:
            await server.run(StdinMessages(into, writer), writer, options)
    if writer.failure is not None:
        raise writer.failure


class HttpServer(uvicorn.Server):
    """Waits at its end for requests, but for none that has no end of its own.

    Args:
        end_streams: Ends the streams on which clients only listen.
    """

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and wait for those under way."""
        self._end_streams()
        await super().shutdown(sockets)


async def serve_http(engine: Engine, host: str, port: int) -> None:
    """Serve any number of clients at `http://HOST:PORT/mcp` until cancelled."""
    server = http_server(engine, host, port)
    try:
        await server.serve()
    except anyio.get_cancelled_exc_class():
        if server.started:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await server.shutdown()
        raise


def http_server(engine: Engine, host: str, port: int) -> HttpServer:
    """Return what serves there, not yet begun."""
    server = build_server(engine)
    app = server.streamable_http_app(host=host, transport_security=guard(host))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return HttpServer(config, server.notices.end_streams)


def guard(host: str) -> TransportSecuritySettings:
    """Return what `Host` and `Origin` a request may carry: a web page must not reach the bridge.

    The SDK guards three spellings of loopback by itself, and no other loopback address.
    """
    shown = f"[{host}]" if ":" in host else host
    names = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", shown))
    return TransportSecuritySettings(
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT".

    Raises:
        UsageError: It is no address, or not one of this machine alone.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        message = f"{text!r} is not HOST:PORT, such as 127.0.0.1:8765."
        raise UsageError(message)
    host = match[1] or match[2]
    if not _is_loopback(host):
        message = (
            f"{host} can be reached from other machines, and whoever reaches the bridge can run "
            "code and use your servers."
        )
        raise UsageError(message, remedy="Bind to 127.0.0.1 and put an authenticating proxy ahead.")
    return host, int(match[3])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
