"""The bridge as an MCP server: its tools, three kinds of resource.

Owns the mapping between MCP's messages and the engine, and nothing else: what a run is, which
servers there are and what is said of them is decided below.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from bridge import __version__
from bridge.engine import Engine
from bridge.engine.clearing import clear_value
from bridge.engine.commands import Progress, failed_command
from bridge.errors import BridgeError
from bridge.model import RunResult
from bridge.render.modes import render
from bridge.render.structured import structured
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema
from bridge.server.command_tool import COMMAND_TOOL, command_result, command_tool, parse_command
from bridge.server.notices import Notices, NotifyingServer
from bridge.server.runs import Runs
from bridge.server.search_tool import SEARCH_TOOL, search_result, search_tool

logger = logging.getLogger(__name__)

TOOL = "run_python"
CAPABILITIES_URI = "bridge://capabilities"
SERVERS_URI = "bridge://servers"
TOOLS_URI = "bridge://tools/"
STUBS_URI = "bridge://stubs/"

INSTRUCTIONS = (
    "run_python runs a Python program in a sandbox from which your MCP servers can be called as "
    "functions. Prefer one program that makes many calls and prints only what you need."
)

Context = ServerRequestContext[Any]


def build_server(engine: Engine, *, principal: str = "") -> Server[Any]:
    """Return an MCP server over `engine`, not yet connected to anything."""
    notices = Notices(engine.guide.tool_description, engine.servers.names)
    runs = Runs(engine, principal)
    surface = _Surface(engine, runs, notices)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        with engine.servers.known.heard_by(notices.changed):
            async with notices.running():
                yield {}

    server: Server[Any] = NotifyingServer(
        "mcp-code-bridge",
        lifespan=lifespan,
        on_subscriptions_listen=notices.listen,
        version=__version__,
        title="MCP code bridge",
        instructions=INSTRUCTIONS,
        on_list_tools=surface.list_tools,
        on_call_tool=surface.call_tool,
        on_list_resources=surface.list_resources,
        on_list_resource_templates=surface.list_resource_templates,
        on_read_resource=surface.read_resource,
    )
    # Given to the constructor it would warn: the newer era has no such request.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, runs.set_level)
    return server


def offered(engine: Engine) -> list[types.Tool]:
    """Return the tools as a client is shown them at this moment."""
    settings = engine.settings
    tool = types.Tool(
        name=TOOL,
        title="Run Python with MCP tools",
        description=engine.guide.tool_description(),
        input_schema=input_schema(settings.max_timeout, settings.timeout),
        output_schema=OUTPUT_SCHEMA,
        annotations=types.ToolAnnotations(
            title="Run Python with MCP tools",
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            open_world_hint=True,
        ),
    )
    profiles = engine.commands.profiles
    return [tool, search_tool(), *([command_tool(profiles)] if profiles else [])]


class _Surface:
    """The handlers. Each catches what it must: the low-level server wraps nothing."""

    def __init__(self, engine: Engine, runs: Runs, notices: Notices) -> None:
        self._engine = engine
        self._runs = runs
        self._notices = notices

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Describe the tools, with the servers there are at this moment."""
        await self._engine.servers.refresh()
        self._notices.listed(context)
        return types.ListToolsResult(tools=offered(self._engine))

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a program. Every failure is a result that the model can read."""
        result = await self._call_tool(context, params)
        # Questions come from the engine, which has seen to them already.
        if isinstance(result, types.CallToolResult):
            self._clear(result)
        return result

    def _clear(self, result: types.CallToolResult) -> None:
        """Take the secrets of this machine out of a result, whichever tool it is of."""
        redactor = self._engine.servers.secrets.redactor
        for block in result.content:
            if isinstance(block, types.TextContent):
                block.text = redactor.text(block.text)
        result.structured_content = clear_value(result.structured_content, redactor)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name == COMMAND_TOOL and self._engine.commands.profiles:
            return await self._run_command(context, params)
        if params.name == SEARCH_TOOL:
            return await search_result(self._engine, params.arguments)
        if params.name != TOOL:
            # The specification makes an unknown tool a protocol error: -32602, invalid params.
            names = ", ".join(tool.name for tool in offered(self._engine))
            message = f"Unknown tool {params.name!r:.100}; there are: {names}."
            raise MCPError(types.INVALID_PARAMS, message)
        outcome = await self._runs.call(context, params)
        if isinstance(outcome, types.InputRequiredResult):
            return outcome
        return _to_result(outcome, self._engine)

    async def _run_command(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        commands = self._engine.commands

        try:
            request = parse_command(params.arguments, commands.profiles)
            result = await commands.run(request, _progress(context), principal=self._runs.principal)
        except BridgeError as error:
            logger.info("command refused: %s", error)
            result = failed_command(error)
        except Exception:
            # A named per-request boundary: a defect here must not end other requests.
            logger.exception("a command failed inside the bridge")
            result = failed_command(BridgeError("The bridge failed; its log has the details."))
        return command_result(result)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the guide, the servers and, per server, its tools."""
        await self._engine.servers.refresh()
        self._notices.listed(context)
        resources = [
            types.Resource(
                uri=CAPABILITIES_URI,
                name="capabilities",
                title="What a program can do",
                mime_type="text/markdown",
            ),
            types.Resource(
                uri=SERVERS_URI,
                name="servers",
                title="Discovered MCP servers",
                mime_type="application/json",
            ),
        ]
        resources.extend(
            types.Resource(
                uri=TOOLS_URI + quote(name, safe=""),
                name=f"tools of {name}",
                mime_type="application/json",
            )
            for name in self._engine.servers.names()
        )
        return types.ListResourcesResult(resources=resources)

    async def list_resource_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Offer the tools of any server, as schemas and as typed Python."""
        tools = types.ResourceTemplate(
            uri_template=TOOLS_URI + "{server}",
            name="tools",
            title="Tools of one server, with their schemas",
            mime_type="application/json",
        )
        stubs = types.ResourceTemplate(
            uri_template=STUBS_URI + "{server}",
            name="stubs",
            title="Tools of one server, as typed Python",
            mime_type="text/x-python",
        )
        return types.ListResourceTemplatesResult(resource_templates=[tools, stubs])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return one resource's text."""
        uri = str(params.uri)
        try:
            mime_type, text = await self._read(uri)
        except BridgeError as error:
            told = self._engine.servers.secrets.redactor.text(str(error))
            raise MCPError(types.INVALID_PARAMS, told) from None
        text = self._engine.servers.secrets.redactor.text(text)
        content = types.TextResourceContents(uri=params.uri, mime_type=mime_type, text=text)
        return types.ReadResourceResult(contents=[content])

    async def _read(self, uri: str) -> tuple[str, str]:
        await self._engine.servers.refresh()
        if uri == CAPABILITIES_URI:
            return "text/markdown", self._engine.guide.capabilities()
        if uri == SERVERS_URI:
            return "application/json", self._engine.guide.servers_json()
        if uri.startswith(TOOLS_URI):
            server = unquote(uri.removeprefix(TOOLS_URI))
            return "application/json", await self._engine.guide.tools_json(server)
        if uri.startswith(STUBS_URI):
            server = unquote(uri.removeprefix(STUBS_URI))
            return "text/x-python", await self._engine.guide.server_stub(server)
        # -32002 is the code the specification gives to an unknown resource.
        raise MCPError(-32002, f"Unknown resource {uri!r:.200}.")


def _progress(context: Context) -> Progress | None:
    """Return what reports progress to the client; None if it did not ask for any."""
    if context.meta is None or "progress_token" not in context.meta:
        return None

    async def progress(seconds: float, message: str) -> None:
        await context.session.report_progress(seconds, message=message)

    return progress


def _to_result(result: RunResult, engine: Engine) -> types.CallToolResult:
    text = render(result, engine.settings.output_mode)
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content=structured(result),
        is_error=result.status != "success",
    )
