"""An MCP server on the SDK's low-level `Server`, over stdio, streamable HTTP or event streams.

    toolbox.py stdio | http | older-http | sse | guarded

The web forms print their port and serve on loopback until stdin ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server import NotificationOptions, Server
from mcp.server.context import ServerRequestContext
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = ["echo", "big", "slow", "liar", "headers", "grow"]

BUS = InMemorySubscriptionBus()

Context = ServerRequestContext[Any]


def describe(name: str) -> Tool:
    output = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return Tool(
        name=name,
        description=f"The {name} tool",
        input_schema={"type": "object"},
        output_schema=output if name == "liar" else None,
    )


async def on_list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[describe(name) for name in NAMES])


def mark(path: str) -> None:
    Path(path).write_text("yes")


async def run_slow(arguments: dict[str, Any]) -> None:
    mark(arguments["started"])
    try:
        await anyio.sleep_forever()
    except BaseException:
        mark(arguments["cancelled"])
        raise


async def on_call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    arguments = params.arguments or {}
    structured: Any = None
    text = "done"
    if params.name == "echo":
        structured = arguments
    elif params.name == "big":
        text = "x" * int(arguments["size"])
    elif params.name == "slow":
        await run_slow(arguments)
    elif params.name == "liar":
        structured = {"n": "not a number"}
    elif params.name == "headers":
        structured = dict(context.request.headers) if isinstance(context.request, Request) else {}
    elif params.name == "meta":
        structured = dict(context.meta or {})
    elif params.name == "grow":
        NAMES.append("grown")
        await BUS.publish(ToolsListChanged())
        await context.session.send_tool_list_changed()
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured
    )


def make_server() -> Server[Any]:
    return Server(
        "toolbox",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_subscriptions_listen=ListenHandler(BUS),
    )


async def serve_stdio() -> None:
    server = make_server()
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


def sse_app() -> Starlette:
    server = make_server()
    transport = SseServerTransport("/messages/")

    class Events:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())

    return Starlette(
        routes=[
            Route("/mcp", Events(), methods=["GET"]),
            Mount("/messages/", app=transport.handle_post_message),
        ]
    )


class OlderApp:
    """A streamable HTTP server that has never heard of the newer era."""

    def __init__(self) -> None:
        self._app = make_server().streamable_http_app()

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


def guarded_app() -> Starlette:
    async def refuse(request: Request) -> Response:
        return Response("who are you?", status_code=401)

    return Starlette(routes=[Route("/mcp", refuse, methods=["GET", "POST"])])


def serve_web(kind: str) -> None:
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    apps: dict[str, Callable[[], ASGIApp]] = {
        "http": make_server().streamable_http_app,
        "older-http": OlderApp,
        "sse": sse_app,
        "guarded": guarded_app,
    }
    app = apps[kind]()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        anyio.run(serve_stdio)
    else:
        serve_web(sys.argv[1])
