"""An MCP server with the kinds of tools and answers that programs meet. Stdio."""

from __future__ import annotations

import base64
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.types import (
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    Tool,
)

Context = ServerRequestContext[Any]
Arguments = dict[str, Any]

waiting: Counter[str] = Counter()
together: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

PIXEL = base64.b64encode(b"\x89PNG not really").decode()


def text(value: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=value)])


def schema(required: list[str], **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": required}


async def echo(arguments: Arguments) -> CallToolResult:
    return CallToolResult(content=[], structured_content=arguments)


async def add(arguments: Arguments) -> CallToolResult:
    total = arguments["a"] + arguments["b"]
    return CallToolResult(content=[TextContent(text=str(total))], structured_content={"sum": total})


async def rows(arguments: Arguments) -> CallToolResult:
    return text('[{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]')


async def say(arguments: Arguments) -> CallToolResult:
    return text(arguments["what"])


async def fail(arguments: Arguments) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text="the shelf is empty")],
        structured_content={"shelf": 7},
        is_error=True,
    )


async def big(arguments: Arguments) -> CallToolResult:
    return text("x" * arguments["size"])


async def slow(arguments: Arguments) -> CallToolResult:
    await anyio.Path(arguments["started"]).write_text("yes")
    try:
        await anyio.sleep_forever()
    except BaseException:
        Path(arguments["cancelled"]).write_text("yes")  # noqa: ASYNC240
        raise
    return text("never")


async def meet(arguments: Arguments) -> CallToolResult:
    """Answer once as many calls of one party as `count` are under way at the same time."""
    party = arguments.get("party", "")
    waiting[party] += 1
    if waiting[party] >= arguments["count"]:
        together[party].set()
    await together[party].wait()
    return text("met")


async def image(arguments: Arguments) -> CallToolResult:
    return CallToolResult(content=[ImageContent(data=PIXEL, mime_type="image/png")])


async def mixed(arguments: Arguments) -> CallToolResult:
    return CallToolResult(
        content=[
            TextContent(text="a note"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            EmbeddedResource(
                resource=BlobResourceContents(
                    uri="file:///a.bin", mime_type="application/x-a", blob=PIXEL
                )
            ),
            ResourceLink(uri="https://example.org/x", name="x"),
        ]
    )


async def crash(arguments: Arguments) -> CallToolResult:
    os._exit(9)


TOOLS: dict[str, tuple[Callable[[Arguments], Awaitable[CallToolResult]], dict[str, Any], str]] = {
    "echo": (echo, {"type": "object"}, "Return the arguments."),
    "add": (add, schema(["a", "b"], a="number", b="number"), "Add two numbers."),
    "rows": (rows, {"type": "object"}, "List rows. __CODE_LITERAL__ {code}"),
    "say": (say, schema(["what"], what="string"), "Say something."),
    "fail": (fail, {"type": "object"}, "Always fails."),
    "big": (big, schema(["size"], size="integer"), "Return much text."),
    "slow": (slow, schema([], started="string", cancelled="string"), "Never answers."),
    "meet": (meet, schema(["count"], count="integer", party="string"), "Wait for others."),
    "image": (image, {"type": "object"}, "Return a picture."),
    "mixed": (mixed, {"type": "object"}, "Return several blocks."),
    "crash": (crash, {"type": "object"}, "End the server."),
    "__import__": (echo, {"type": "object"}, "A hostile name."),
    "class": (echo, {"type": "object"}, "A keyword."),
    "get-Item.v2": (echo, schema(["from"], **{"from": "string"}), "An awkward name."),
}


async def on_list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(
        tools=[
            Tool(name=name, description=about, input_schema=arguments)
            for name, (_, arguments, about) in TOOLS.items()
        ]
    )


async def on_call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    return await TOOLS[params.name][0](params.arguments or {})


async def main() -> None:
    server = Server("workshop", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
