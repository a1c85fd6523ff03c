"""`serve`: runs the bridge as an MCP server."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from bridge.errors import BridgeError, UsageError
from bridge.event_loop import logged_as
from bridge.inventory.config_watch import WatchPlan, watch_config, watch_plan
from bridge.inventory.configuration import context_for
from bridge.runs import open_engine
from bridge.runs.engine import Engine, SharedParts
from bridge.sandbox.selection import select_present
from bridge.server.app import build_server, error_server
from bridge.server.stdio import STDIO, resumed_session, serve_stdio
from bridge.server.transports import parse_address, serve_http
from bridge.settings import Settings, http_token


async def serve(
    settings: Settings,
    *,
    http: str | None = None,
    no_token: bool = False,
    resumed: Mapping[str, Any] | None = None,
    ending: anyio.Event | None = None,
) -> int:
    """Serve until the client closes stdin, or over HTTP until a signal.

    Args:
        resumed: The session of a lost background bridge to continue; see `resumed_session`.
        ending: Ends the HTTP server after its runs.
    """
    if http:
        host, port = parse_address(http)
        # The machine's name (in a pod, the pod's), in the characters of a header.
        name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:63].strip(".-") or "bridge"
        settings = replace(settings, replica=settings.replica or name)
        with logged_as(bridge=settings.replica):
            async with watched_engine(settings) as engine:
                # The mode of a Unix socket limits who may connect, so it needs no token.
                token = "" if no_token or "/" in host else http_token(settings)
                await serve_http(engine, host, port, ending or anyio.Event(), token)
        return 0
    if sys.stdin is None:
        message = "There is no stdin to serve MCP on."
        raise UsageError(message, remedy="Let an MCP client start this, or use --http.")
    if sys.stdin.isatty():
        usual = "An MCP client normally starts this; press Ctrl-C to stop."
        more = "`mcp-code-bridge --help` lists the other commands."
        print("Serving MCP over stdio.", usual, more, file=sys.stderr, flush=True)  # noqa: T201
    async with watched_engine(settings) as engine:
        session = resumed_session(resumed or {}, settings.state_dir)
        await serve_stdio(build_server(engine, principal=STDIO), session)
    return 0


@asynccontextmanager
async def watched_engine(
    settings: Settings, cwd: str | None = None, shared: SharedParts | None = None
) -> AsyncIterator[Engine]:
    """Open the engine of a client, and read the clients' configuration whenever it changes."""
    context = context_for(settings, cwd)
    async with open_engine(
        settings, choose_backend=select_present, cwd=cwd, shared=shared
    ) as engine:
        servers = engine.servers

        def plan() -> WatchPlan:
            return watch_plan(context, servers.discovery.references)

        async with watch_config(plan, servers.refresh):
            yield engine


async def serve_mistake(error: BridgeError, settings: Settings, **_: object) -> int:
    """Answer each request with the settings' mistake until the client closes stdin."""
    await serve_stdio(error_server(error))
    return error.exit_status
