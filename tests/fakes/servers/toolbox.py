"""An MCP server on the SDK that asks before it answers, reports progress, and misbehaves a little.

    toolbox.py stdio | http | older-http | sse | guarded

Clients of the newer era are asked by the answer to their call, all others by requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp.server import NotificationOptions, Server
from mcp.server.context import ServerRequestContext
from mcp.server.sse import SseServerTransport
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequest,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from tests.fakes.servers.serving import main

Context = ServerRequestContext[Any]
Params = CallToolRequestParams
Other = ReadResourceRequestParams | GetPromptRequestParams
Answer = CallToolResult | InputRequiredResult

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

BUS = InMemorySubscriptionBus()

held: list[anyio.Event] = []
visits: list[None] = []


def text(value: str, *, error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=value)], is_error=error)


def structured(value: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text="done")], structured_content=value)


async def inquire(
    context: Context, params: Params | Other, **requests: InputRequest
) -> dict[str, Any] | Answer:
    """Ask, the way the client's era wants it; return the answers, or what to return instead."""
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        if params.request_state is None:
            return InputRequiredResult(input_requests=requests, request_state="once asked")
        return dict(params.input_responses or {})
    kinds: dict[str, type[BaseModel]] = {
        "elicitation/create": ElicitResult,
        "sampling/createMessage": CreateMessageResult,
        "roots/list": ListRootsResult,
    }
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        return {
            key: await context.session.send_request(
                request, kinds[request.method], metadata=metadata
            )
            for key, request in requests.items()
        }
    except MCPError as error:
        return text(f"refused with {error.error.code}: {error.error.message}", error=True)


async def name(context: Context, params: Params) -> Answer:
    message = str((params.arguments or {}).get("message", "What is your name?"))
    form: ElicitRequestParams = ElicitRequestFormParams(message=message, requested_schema=FORM)
    answers = await inquire(context, params, it=ElicitRequest(params=form))
    if not isinstance(answers, dict):
        return answers
    result = answers["it"]
    return text(f"{result.action} {result.content}" if result.content else result.action)


async def visit(context: Context, params: Params) -> Answer:
    url: ElicitRequestParams = ElicitRequestURLParams(
        message="Please log in.", url="https://example.com/login", elicitation_id="e1"
    )
    answers = await inquire(context, params, it=ElicitRequest(params=url))
    return text(answers["it"].action) if isinstance(answers, dict) else answers


async def enrol(context: Context, params: Params) -> Answer:
    """Refuse every first of two calls, as if the user had been at the address by the second."""
    if not visits:
        visits.append(None)
        url = ElicitRequestURLParams(
            message="Please enrol.", url="https://example.com/enrol", elicitation_id="e2"
        )
        raise UrlElicitationRequiredError([url])
    visits.clear()
    return text("enrolled")


async def think(context: Context, params: Params) -> Answer:
    message = SamplingMessage(role="user", content=TextContent(text="What is two and two?"))
    asked = CreateMessageRequestParams(messages=[message], max_tokens=10)
    answers = await inquire(context, params, it=CreateMessageRequest(params=asked))
    return text(f"it says {answers['it'].content.text}") if isinstance(answers, dict) else answers


async def roots(context: Context, params: Params) -> Answer:
    answers = await inquire(context, params, it=ListRootsRequest())
    if not isinstance(answers, dict):
        return answers
    return text(" ".join(str(root.uri) for root in answers["it"].roots))


async def hold(context: Context, params: Params) -> Answer:
    """Wait until `release` is called."""
    path = (params.arguments or {}).get("started")
    held.append(released := anyio.Event())
    if path:
        await anyio.Path(path).write_text("yes")
    await released.wait()
    return text("released")


async def release(context: Context, params: Params) -> Answer:
    await say(context, "info", "released")
    while held:
        held.pop().set()
    return text("done")


async def count(context: Context, params: Params) -> Answer:
    """Report progress, and write a message of each level."""
    for done in range(1, 4):
        await context.session.report_progress(done, 3, f"step {done}")
    for level in ("debug", "info", "error"):
        await say(context, level, {"said": level})
    return text("counted")


async def say(context: Context, level: str, data: object) -> None:
    params = {"level": level, "logger": "the-asker", "data": data}
    await context.session.send_notification(
        LoggingMessageNotification(params=LoggingMessageNotificationParams.model_validate(params)),
        related_request_id=context.request_id,
    )


async def echo(context: Context, params: Params) -> Answer:
    return structured(params.arguments or {})


async def meta(context: Context, params: Params) -> Answer:
    return structured(dict(context.meta or {}))


async def headers(context: Context, params: Params) -> Answer:
    return structured(dict(context.request.headers) if isinstance(context.request, Request) else {})


async def liar(context: Context, params: Params) -> Answer:
    """Break its own output schema."""
    return structured({"n": "not a number"})


async def big(context: Context, params: Params) -> Answer:
    return text("x" * int((params.arguments or {})["size"]))


async def slow(context: Context, params: Params) -> Answer:
    """Write that it has begun, and that it was cancelled."""
    arguments = params.arguments or {}
    await anyio.Path(arguments["started"]).write_text("yes")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.Path(arguments["cancelled"]).write_text("yes")
    raise AssertionError


async def grow(context: Context, params: Params) -> Answer:
    TOOLS["grown"] = grow
    await BUS.publish(ToolsListChanged())
    await context.session.send_tool_list_changed()
    return text("done")


TOOLS: dict[str, Callable[[Context, Params], Awaitable[Answer]]] = {
    tool.__name__: tool
    for tool in (
        *(name, visit, enrol, think, roots, hold, release, count),
        *(echo, meta, headers, liar, big, slow, grow),
    )
}


async def on_list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(
        tools=[
            Tool(
                name=name,
                description=f"The {name} tool",
                input_schema={"type": "object"},
                output_schema=NUMBER if name == "liar" else None,
            )
            for name in TOOLS
        ]
    )


async def on_call_tool(context: Context, params: Params) -> Answer:
    return await TOOLS[params.name](context, params)


async def named(context: Context, params: Other) -> str | InputRequiredResult:
    """Ask for a name, whatever is wanted."""
    form: ElicitRequestParams = ElicitRequestFormParams(message="Who?", requested_schema=FORM)
    answers = await inquire(context, params, it=ElicitRequest(params=form))
    if isinstance(answers, InputRequiredResult):
        return answers
    if not isinstance(answers, dict):
        raise MCPError(-32000, "no user was asked")
    return f"for {answers['it'].content['name']}"


async def on_list_resources(
    context: Context, params: PaginatedRequestParams | None
) -> ListResourcesResult:
    return ListResourcesResult(resources=[])


async def on_list_prompts(
    context: Context, params: PaginatedRequestParams | None
) -> ListPromptsResult:
    return ListPromptsResult(prompts=[])


async def on_read_resource(
    context: Context, params: ReadResourceRequestParams
) -> ReadResourceResult | InputRequiredResult:
    got = await named(context, params)
    if isinstance(got, InputRequiredResult):
        return got
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, text=got)])


async def on_get_prompt(
    context: Context, params: GetPromptRequestParams
) -> GetPromptResult | InputRequiredResult:
    got = await named(context, params)
    if isinstance(got, InputRequiredResult):
        return got
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=got))])


def make_server() -> Server[Any]:
    return Server(
        "toolbox",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_list_resources=on_list_resources,
        on_read_resource=on_read_resource,
        on_list_prompts=on_list_prompts,
        on_get_prompt=on_get_prompt,
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
