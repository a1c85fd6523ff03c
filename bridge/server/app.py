"""The bridge as an MCP server: maps MCP's messages to the engine, without decisions of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from bridge import __version__
from bridge.errors import BridgeError
from bridge.model import CommandResult, RunResult
from bridge.model.results import error_result
from bridge.runs import Engine
from bridge.sandbox.backend import limits_for
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema
from bridge.server.clients import Context, HandshakeClient, answers_of, known_client
from bridge.server.command_tool import COMMAND_TOOL, command_result, command_tool, parse_command
from bridge.server.content import (
    adapt_to_client,
    make_tool,
    output_schema,
    redact_content,
    result_or_error,
    to_result,
)
from bridge.server.greeting import NAME, TITLE
from bridge.server.notices import Notices, NotifyingServer
from bridge.server.resources import SESSIONS_URI, Resources
from bridge.server.runs import Runs, TaskParams, UpdateParams, task_status
from bridge.server.search_tool import SEARCH_TOOL, search_result, search_tool
from bridge.text import without_values
from bridge.upstream.task_calls import EXTENSION

TOOL = "run_python"

SEARCH_HINT = "call tools of all the user's MCP servers from a Python program"
"""Text that Claude Code's tool search matches, in addition to names and descriptions."""


def build_server(engine: Engine, *, principal: str = "") -> NotifyingServer:
    runs = Runs(engine, principal)
    notices = Notices(engine.guide.tool_description, engine.servers.names, owner=runs.owner)
    surface = _Surface(engine, runs, notices)
    resources = Resources(engine, runs, notices)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        with engine.servers.inventory.notifying(notices.note_change):
            async with notices.notify_changes():
                yield {}

    server = NotifyingServer(
        NAME,
        notices,
        lifespan=lifespan,
        version=__version__,
        title=TITLE,
        on_list_tools=surface.list_tools,
        on_call_tool=surface.call_tool,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_resource_templates,
        on_read_resource=resources.read_resource,
        on_subscribe_resource=notices.subscribe,
        on_unsubscribe_resource=notices.unsubscribe,
    )
    # The constructor would warn, since protocol 2026-07-28 has no such request.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, runs.set_level)
    changed = "notifications/roots/list_changed"
    server.add_notification_handler(changed, types.NotificationParams, surface.note_changed_roots)
    server.middleware.append(surface.introduce)
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, surface.get_task)
    server.add_request_handler("tasks/update", UpdateParams, surface.update_task)
    server.add_request_handler("tasks/cancel", TaskParams, surface.cancel_task)
    return server


async def tool_list(engine: Engine, *, brief: bool = False) -> list[types.Tool]:
    """Return the tools with their current descriptions; `brief` if the client defers tools."""
    settings, limits = engine.settings, limits_for(engine.settings)
    tool = make_tool(
        TOOL,
        "Run Python with MCP tools",
        open_world=True,
        _meta={"anthropic/alwaysLoad": True, "anthropic/searchHint": SEARCH_HINT},
        description=await engine.guide.tool_description(brief=brief),
        input_schema=input_schema(
            limits.longest_timeout,
            limits.timeout,
            packages=engine.guide.offers_packages,
            listed_only=settings.listed_servers_only,
            profiles=settings.profiles,
        ),
        output_schema=output_schema(OUTPUT_SCHEMA, settings.structured),
    )
    profiles = engine.commands.profiles
    commands = [command_tool(profiles, settings.structured)] if profiles else []
    return [tool, search_tool(), *commands]


class _Surface:
    """The request handlers; the low-level server handles no errors for them."""

    def __init__(self, engine: Engine, runs: Runs, notices: Notices) -> None:
        self._engine = engine
        self._runs = runs
        self._notices = notices

    async def introduce(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            await self._engine.servers.refresh()
            result["instructions"] = self._engine.guide.instructions()
        return result

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        await self._engine.servers.refresh()
        await self._notices.note_listing(context)
        tools = await tool_list(self._engine, brief=known_client(context).defers)
        # Last: the first responses are more urgent.
        self._engine.servers.load_unknown_later()
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        """Run a program. Every failure is a result that the model can read."""
        result = await self._call_tool(context, params)
        # The engine has redacted questions already.
        if isinstance(result, types.CallToolResult):
            self._finish(context, result)
        return result

    def _finish(self, context: Context, result: types.CallToolResult) -> None:
        redact_content(result, self._engine.servers.secrets.redactor)
        adapt_to_client(known_client(context), result)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        if params.name == COMMAND_TOOL and self._engine.commands.profiles:
            return await self._run_command(context, params)
        if params.name == SEARCH_TOOL:
            return await search_result(self._engine, params.arguments, self._runs.principal)
        if params.name != TOOL:
            # The specification makes an unknown tool a protocol error: -32602, invalid params.
            names = ", ".join(tool.name for tool in await tool_list(self._engine))
            message = f"Unknown tool {params.name!r:.100}; there are: {names}."
            raise MCPError(types.INVALID_PARAMS, message)
        outcome = await self._runs.call(context, params)
        if isinstance(outcome, types.InputRequiredResult | dict):
            return outcome
        result = self._result(context, outcome)
        if outcome.status != "running":
            await self._runs.keep_unread(context, outcome.run_id, result)
        return result

    def _result(self, context: Context, outcome: RunResult) -> types.CallToolResult:
        owner = self._runs.owner(context)
        if outcome.artifacts and owner:
            self._notices.note_update("", owner)
        if outcome.session is not None and owner:
            self._notices.note_update(SESSIONS_URI, owner)
        return to_result(outcome, self._engine, protocol_version=context.protocol_version)

    async def note_changed_roots(self, context: Context, params: types.NotificationParams) -> None:
        self._engine.servers.pool.roots_changed()

    async def get_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        run = self._runs.task(context, params.task_id)
        result = None if run.result is None else self._result(context, run.result)
        if result is not None:
            self._finish(context, result)
        return task_status(run, params.task_id, result)

    async def update_task(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        run = self._runs.task(context, params.task_id)
        run.accept_answers(answers_of(params.input_responses), partly=True)
        return {}

    async def cancel_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        self._runs.task(context, params.task_id).scope.cancel()
        return {}

    async def _run_command(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        commands = self._engine.commands
        client = HandshakeClient(context, self._runs.principal)

        async def run() -> CommandResult:
            with self._engine.under_way.one():
                return await commands.run(
                    parse_command(params.arguments, commands.profiles),
                    client.progress if client.wants_progress else None,
                    principal=self._runs.principal,
                    client=self._runs.introduction(context),
                )

        result = await result_or_error("command", run(), partial(error_result, kind=CommandResult))
        return command_result(result, self._engine.settings.structured)


def error_server(error: BridgeError) -> Server[Any]:
    """Return a server whose tools all return the error.

    The error omits the setting's value, which may be a secret in the wrong place.
    """
    problem = without_values(str(error))
    said = (
        f"The bridge's settings have a mistake, so it runs nothing. {problem} "
        "Tell the user: correct it (`mcp-code-bridge doctor` shows it whole), then reconnect this "
        "MCP server."
    )

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=said, input_schema={"type": "object"})
            for name in (TOOL, SEARCH_TOOL)
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=said)], is_error=True
        )

    return Server(
        NAME,
        version=__version__,
        title=TITLE,
        instructions=said,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
