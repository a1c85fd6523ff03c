"""How servers on the SDK are served: over stdio, or on a port of loopback."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import uvicorn
from mcp.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class OlderApp:
    """A streamable HTTP server that has never heard of the newer era."""

    def __init__(self, server: Server[Any]) -> None:
        self._app = server.streamable_http_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        first = await receive()
        if b"server/discover" in first.get("body", b""):
            await Response("unknown method", status_code=400)(scope, receive, send)
            return
        pending = [first]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)


def main(
    make_server: Callable[[], Server[Any]],
    changes: NotificationOptions,
    **apps: Callable[[], ASGIApp],
) -> None:
    """Serve as the first argument says: `stdio`, `http`, `older-http` or one of `apps`.

    The web forms print their port, or take it from PORT, and serve until stdin ends.
    """
    kind = sys.argv[1]
    if kind == "stdio":
        anyio.run(serve_stdio, make_server(), changes)
        return
    apps = {
        "http": lambda: make_server().streamable_http_app(),
        "older-http": lambda: OlderApp(make_server()),
        **apps,
    }
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    config = uvicorn.Config(apps[kind](), log_level="error", timeout_graceful_shutdown=1)

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


async def serve_stdio(server: Server[Any], changes: NotificationOptions) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(changes))
