"""An MCP server with resources and prompts, on the SDK's low-level `Server`.

    library.py stdio | http

Its tools, which are called
as two of the helpers for resources are, add a resource and a prompt and say that they did.
"""

from __future__ import annotations

import base64
from typing import Any

from mcp import MCPError
from mcp.server import NotificationOptions, Server
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.types import (
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    EmbeddedResource,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    Tool,
    UnsubscribeRequestParams,
)

from tests.fakes.servers.serving import main

Context = ServerRequestContext[Any]
Params = PaginatedRequestParams | None

PAGE = 2
BUS = InMemorySubscriptionBus()
PIXEL = base64.b64encode(b"\x89PNG not really").decode()

BOOKS: dict[str, tuple[str | None, str]] = {
    "books://index": ("application/json", '{"titles": ["Emma"]}'),
    "books://emma": ("text/markdown", "[Emma](x) is a book."),
    "books://untyped": (None, "[1, 2]"),
    "books://schema": ("application/ld+json; charset=utf-8", '{"@type": "Book"}'),
}
PROMPTS = ["review"]
SUBSCRIBED: set[str] = set()
ASKED = {"lists": 0}


def contents(uri: str, mime_type: str | None, text: str) -> TextResourceContents:
    return TextResourceContents(uri=uri, mime_type=mime_type, text=text)


async def on_list_resources(context: Context, params: Params) -> ListResourcesResult:
    ASKED["lists"] += 1
    start = int(params.cursor) if params and params.cursor else 0
    uris = [*BOOKS, "books://cover", "books://both"]
    following = start + PAGE
    return ListResourcesResult(
        resources=[
            Resource(uri=uri, name=uri.partition("//")[2], mime_type=BOOKS.get(uri, (None,))[0])
            for uri in uris[start:following]
        ],
        next_cursor=str(following) if following < len(uris) else None,
    )


async def on_list_templates(context: Context, params: Params) -> ListResourceTemplatesResult:
    template = ResourceTemplate(uri_template="books://{title}/pages{?from,to}", name="pages")
    return ListResourceTemplatesResult(resource_templates=[template])


async def on_read(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    uri = str(params.uri)
    cover = BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
    if uri in BOOKS:
        return ReadResourceResult(contents=[contents(uri, *BOOKS[uri])])
    if uri == "books://draft":
        return ReadResourceResult(contents=[contents(uri, "text/plain", "rewritten")])
    if uri == "books://cover":
        return ReadResourceResult(contents=[cover])
    if uri == "books://both":
        return ReadResourceResult(contents=[contents(uri, "text/plain", "{}"), cover])
    if "/pages" in uri:
        return ReadResourceResult(contents=[contents(uri, "text/plain", uri)])
    raise MCPError(code=-32002, message="Resource not found")


async def on_list_prompts(context: Context, params: Params) -> ListPromptsResult:
    arguments = [
        PromptArgument(name="title", description="Of the book", required=True),
        PromptArgument(name="stars"),
    ]
    return ListPromptsResult(
        prompts=[
            Prompt(name=name, description="Review it", arguments=arguments) for name in PROMPTS
        ]
    )


async def on_get_prompt(context: Context, params: GetPromptRequestParams) -> GetPromptResult:
    given = params.arguments or {}
    if params.name not in PROMPTS or "title" not in given:
        raise MCPError(code=-32602, message="No such prompt, or no title")
    resource = EmbeddedResource(resource=contents("books://index", *BOOKS["books://index"]))
    return GetPromptResult(
        description="A review",
        messages=[
            PromptMessage(role="user", content=TextContent(text=f"[{given}]")),
            PromptMessage(role="assistant", content=TextContent(text='{"not": "parsed"}')),
            PromptMessage(role="user", content=resource),
            PromptMessage(role="user", content=ImageContent(data=PIXEL, mime_type="image/png")),
        ],
    )


async def on_list_tools(context: Context, params: Params) -> ListToolsResult:
    return ListToolsResult(
        tools=[
            Tool(name=name, description="Change it.", input_schema={"type": "object"})
            for name in ("get_prompt", "add_book", "asked")
        ]
    )


async def on_call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    if params.name == "add_book":
        BOOKS["books://new"] = ("text/plain", "new")
        await BUS.publish(ResourcesListChanged())
        await context.session.send_resource_list_changed()
    elif params.name == "rewrite":
        await BUS.publish(ResourceUpdated(uri="books://draft"))
        if SUBSCRIBED:
            await context.session.send_resource_updated("books://draft")
    elif params.name == "subscribed":
        return CallToolResult(content=[TextContent(text=",".join(SUBSCRIBED))])
    elif params.name == "get_prompt":
        PROMPTS.append("summary")
        await BUS.publish(PromptsListChanged())
        await context.session.send_prompt_list_changed()
    return CallToolResult(content=[TextContent(text=str(ASKED["lists"]))])


async def on_complete(context: Context, params: CompleteRequestParams) -> CompleteResult:
    known = (params.context.arguments if params.context else None) or {}
    about = params.ref.uri if params.ref.type == "ref/resource" else params.ref.name
    titles = [f"{params.argument.value}mma", f"{about}?{','.join(known)}"]
    return CompleteResult(completion=Completion(values=titles))


async def on_subscribe(context: Context, params: SubscribeRequestParams) -> EmptyResult:
    SUBSCRIBED.add(str(params.uri))
    return EmptyResult()


async def on_unsubscribe(context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
    SUBSCRIBED.discard(str(params.uri))
    return EmptyResult()


def make_server() -> Server[Any]:
    return Server(
        "library",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_list_resources=on_list_resources,
        on_list_resource_templates=on_list_templates,
        on_read_resource=on_read,
        on_list_prompts=on_list_prompts,
        on_get_prompt=on_get_prompt,
        on_subscriptions_listen=ListenHandler(BUS),
        on_completion=on_complete,
        on_subscribe_resource=on_subscribe,
        on_unsubscribe_resource=on_unsubscribe,
    )


if __name__ == "__main__":
    main(make_server, NotificationOptions(prompts_changed=True, resources_changed=True))
