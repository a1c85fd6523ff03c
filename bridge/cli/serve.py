"""`serve`: the bridge as an MCP server."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from bridge.discovery.finder import DiscoveryContext
from bridge.errors import BridgeError, UsageError
from bridge.inventory.config_watch import ConfigWatcher, watch_plan
from bridge.inventory.configuration import context_for
from bridge.runs import Engine, open_engine
from bridge.sandbox.selection import select_present
from bridge.server.app import build_server, error_server
from bridge.server.greeting import NO_GREETING, Greeting
from bridge.server.stdio import STDIO, serve_stdio
from bridge.settings import Settings, http_token

ALONE = (
    "Serving MCP over stdio. An MCP client normally starts this; press Ctrl-C to stop. "
    "`mcp-code-bridge --help` lists the other commands."
)


def _announce(host: str, port: int) -> None:
    if "/" in host:
        print(f"Serving unix:{host}", file=sys.stderr, flush=True)  # noqa: T201
        return
    shown = f"[{host}]" if ":" in host else host
    print(f"Serving http://{shown}:{port}/mcp", file=sys.stderr, flush=True)  # noqa: T201


def _machine() -> str:
    """Return the machine's name, as a header can have it; in a pod that is the pod's own."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:63].strip(".-") or "bridge"


def _watching(engine: Engine, context: DiscoveryContext) -> ConfigWatcher:
    servers = engine.servers
    return ConfigWatcher(lambda: watch_plan(context, servers.discovery.references), servers.refresh)


async def serve(
    settings: Settings,
    *,
    http: str | None = None,
    no_token: bool = False,
    greeting: Greeting = NO_GREETING,
    ending: anyio.Event | None = None,
) -> int:
    """Serve until the client closes stdin, or over HTTP until a signal."""
    address = None
    if http:
        # Here: the first answer on stdio need not wait for it.
        from bridge.server.transports import parse_address

        address = parse_address(http)
        settings = replace(settings, replica=settings.replica or _machine())
    context = context_for(settings, str(Path.cwd()), sys.platform)
    # Hundreds of servers take a while to read, which the answer to `initialize` need not wait for.
    opened = open_engine(settings, eager=False, choose_backend=select_present)
    async with opened as engine, _watching(engine, context).running():
        if address is None:
            if sys.stdin is None:
                message = "There is no stdin to serve MCP on."
                raise UsageError(message, remedy="Let an MCP client start this, or use --http.")
            if sys.stdin.isatty():
                print(ALONE, file=sys.stderr, flush=True)  # noqa: T201
            await serve_stdio(build_server(engine, principal=STDIO), greeting)
        else:
            host, port = address
            told = partial(_announce, host)
            # The mode of a Unix socket says who may connect.
            token = "" if no_token or "/" in host else http_token(settings)
            from bridge.server.transports import serve_http

            await serve_http(engine, host, port, told, ending or anyio.Event(), token)
    return 0


async def serve_mistake(error: BridgeError, settings: Settings, **_: object) -> int:
    """Answer every request with the mistake in the settings, until the client closes stdin."""
    await serve_stdio(error_server(error))
    return error.exit_status
