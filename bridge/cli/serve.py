"""`serve`: runs the bridge as an MCP server."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio

from bridge.errors import BridgeError, UsageError
from bridge.event_loop import logged_as
from bridge.inventory.config_watch import watch_config, watch_plan
from bridge.inventory.configuration import context_for
from bridge.runs import open_engine
from bridge.sandbox.selection import select_present
from bridge.server.app import build_server, error_server
from bridge.server.greeting import NO_GREETING, Greeting
from bridge.server.stdio import STDIO, serve_stdio
from bridge.settings import Settings, http_token


async def serve(
    settings: Settings,
    *,
    http: str | None = None,
    no_token: bool = False,
    greeting: Greeting = NO_GREETING,
    ending: anyio.Event | None = None,
) -> int:
    """Serve until the client closes stdin, or over HTTP until a signal."""
    host, port = "", 0
    if http:
        # Imported here: the first answer on stdio must not wait for it.
        from bridge.server.transports import parse_address

        host, port = parse_address(http)
        # The machine's name (in a pod, the pod's), in the characters of a header.
        name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:63].strip(".-") or "bridge"
        settings = replace(settings, replica=settings.replica or name)
    context = context_for(settings)
    async with AsyncExitStack() as stack:
        stack.enter_context(logged_as(bridge=settings.replica))
        # Not eager: the answer to `initialize` must not wait for the files of all servers.
        opened = open_engine(settings, eager=False, choose_backend=select_present)
        engine = await stack.enter_async_context(opened)
        servers = engine.servers
        watch = watch_config(
            lambda: watch_plan(context, servers.discovery.references), servers.refresh
        )
        await stack.enter_async_context(watch)
        if host:
            from bridge.server.transports import serve_http

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
        await serve_stdio(build_server(engine, principal=STDIO), greeting)
    return 0


async def serve_mistake(error: BridgeError, settings: Settings, **_: object) -> int:
    """Answer every request with the settings' mistake until the client closes stdin."""
    await serve_stdio(error_server(error))
    return error.exit_status
