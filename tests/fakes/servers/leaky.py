"""An MCP server, over stdio, that puts its own secret wherever it can say anything.

The secret is LEAKY_TOKEN of its environment. Each place is named in front of the secret, so that a
test sees which were reached.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any
from urllib.parse import quote

import anyio
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    Prompt,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    Tool,
)

from tests.fakes.servers.serving import serve_stdio

Context = ServerRequestContext[Any]

TOKEN = os.environ.get("LEAKY_TOKEN", "")

FORMS = [
    TOKEN,
    json.dumps({"in JSON": TOKEN}),
    json.dumps(json.dumps({"in JSON in JSON": TOKEN}, ensure_ascii=False)),
    quote(TOKEN, safe=""),
    base64.b64encode(f"user:{TOKEN}".encode()).decode(),
    base64.urlsafe_b64encode(f"{TOKEN}!".encode()).decode(),
]

FORM = {"type": "object", "properties": {"name": {"type": "string", "description": TOKEN}}}


def text(value: str, *, error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=value)], is_error=error)


async def on_list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    told = {"type": "string", "description": TOKEN}
    schema = {"type": "object", "properties": {"x": told, "password": told}}
    names = ("say", "data", "large", "fail", "refuse", "notify", "ask")
    return ListToolsResult(
        tools=[
            Tool(
                name=name, title=f"title {TOKEN}", description=f"about {TOKEN}", input_schema=schema
            )
            for name in names
        ]
    )


async def on_call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    if params.name == "say":
        return text(f"result {' '.join(FORMS)}")
    if params.name == "data":
        found = {"field": f"structured {TOKEN}", f"key {TOKEN}": FORMS, "number": 1.5, "none": None}
        return CallToolResult(content=[TextContent(text=TOKEN)], structured_content=found)
    if params.name == "large":
        return text(f"large {TOKEN} {'.' * 200_000} {' '.join(FORMS)}")
    if params.name == "fail":
        return text(f"failure {TOKEN} {'x' * 15_970} {TOKEN}", error=True)
    if params.name == "refuse":
        raise MCPError(-32000, f"refusal {TOKEN}", {"data": TOKEN})
    if params.name == "notify":
        await notify(context)
        return text("done")
    message = ElicitRequestFormParams(message=f"question {TOKEN}", requested_schema=FORM)
    answer = await context.session.send_request(
        ElicitRequest(params=message),
        ElicitResult,
        metadata=ServerMessageMetadata(related_request_id=context.request_id),
    )
    return text(answer.action)


async def notify(context: Context) -> None:
    await context.session.report_progress(1, 2, f"progress {TOKEN} {'y' * 470} {TOKEN}")
    said = {"level": "error", "logger": TOKEN, "data": {"message": [TOKEN, "z" * 3950, TOKEN]}}
    await context.session.send_notification(
        LoggingMessageNotification(params=LoggingMessageNotificationParams.model_validate(said)),
        related_request_id=context.request_id,
    )


async def on_list_resources(
    context: Context, params: PaginatedRequestParams | None
) -> ListResourcesResult:
    return ListResourcesResult(resources=[Resource(uri="leak:one", name=f"offer {TOKEN}")])


async def on_read_resource(
    context: Context, params: ReadResourceRequestParams
) -> ReadResourceResult:
    content = TextResourceContents(uri=params.uri, text=f"resource {TOKEN}")
    return ReadResourceResult(contents=[content])


async def on_list_prompts(
    context: Context, params: PaginatedRequestParams | None
) -> ListPromptsResult:
    return ListPromptsResult(prompts=[Prompt(name="one", description=TOKEN)])


async def on_get_prompt(context: Context, params: GetPromptRequestParams) -> GetPromptResult:
    said = PromptMessage(role="user", content=TextContent(text=f"prompt {TOKEN}"))
    return GetPromptResult(description=TOKEN, messages=[said])


def make_server() -> Server[Any]:
    return Server(
        "leaky",
        instructions=f"instructions {TOKEN}",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_list_resources=on_list_resources,
        on_read_resource=on_read_resource,
        on_list_prompts=on_list_prompts,
        on_get_prompt=on_get_prompt,
    )


if __name__ == "__main__":
    anyio.run(serve_stdio, make_server())
