"""An MCP server on the SDK's low-level `Server`, over stdio, streamable HTTP or event streams.

toolbox.py stdio | http | older-http | sse | guarded
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from mcp.server import NotificationOptions, Server
from mcp.server.context import ServerRequestContext
from mcp.server.sse import SseServerTransport
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
from starlette.types import Receive, Scope, Send

from tests.fakes.servers.serving import main

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


def guarded_app() -> Starlette:
    async def refuse(request: Request) -> Response:
        return Response("who are you?", status_code=401)

    return Starlette(routes=[Route("/mcp", refuse, methods=["GET", "POST"])])


if __name__ == "__main__":
    main(make_server, NotificationOptions(tools_changed=True), sse=sse_app, guarded=guarded_app)
