"""The bridge as an MCP server: one tool, three kinds of resource.

Owns the mapping between MCP's messages and the engine, and nothing else: what a run is, which
servers there are and what is said of them is decided below.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from bridge import __version__
from bridge.engine import Engine, Progress
from bridge.engine.commands import failed_command
from bridge.engine.outcome import failed_run
from bridge.errors import BridgeError
from bridge.model import RunResult
from bridge.render.modes import render
from bridge.render.structured import structured
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema, parse_request
from bridge.server.command_tool import COMMAND_TOOL, command_result, command_tool, parse_command

logger = logging.getLogger(__name__)

TOOL = "run_python"
CAPABILITIES_URI = "bridge://capabilities"
SERVERS_URI = "bridge://servers"
TOOLS_URI = "bridge://tools/"

INSTRUCTIONS = (
    "run_python runs a Python program in a sandbox from which your MCP servers can be called as "
    "functions. Prefer one program that makes many calls and prints only what you need."
)

Context = ServerRequestContext[Any]


def build_server(engine: Engine, *, principal: str = "") -> Server[Any]:
    """Return an MCP server over `engine`, not yet connected to anything."""
    surface = _Surface(engine, principal)
    return Server(
        "mcp-code-bridge",
        version=__version__,
        title="MCP code bridge",
        instructions=INSTRUCTIONS,
        on_list_tools=surface.list_tools,
        on_call_tool=surface.call_tool,
        on_list_resources=surface.list_resources,
        on_list_resource_templates=surface.list_resource_templates,
        on_read_resource=surface.read_resource,
    )


class _Surface:
    """The handlers. Each catches what it must: the low-level server wraps nothing."""

    def __init__(self, engine: Engine, principal: str) -> None:
        self._engine = engine
        self._principal = principal

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Describe the one tool, with the servers there are at this moment."""
        await self._engine.servers.refresh()
        settings = self._engine.settings
        tool = types.Tool(
            name=TOOL,
            title="Run Python with MCP tools",
            description=self._engine.guide.tool_description(),
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
        profiles = self._engine.commands.profiles
        return types.ListToolsResult(tools=[tool, *([command_tool(profiles)] if profiles else [])])

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Run a program. Every failure is a result that the model can read."""
        if params.name == COMMAND_TOOL and self._engine.commands.profiles:
            return await self._run_command(context, params)
        if params.name != TOOL:
            # The specification makes an unknown tool a protocol error: -32602, invalid params.
            message = f"Unknown tool {params.name!r:.100}; the only one is {TOOL!r}."
            if self._engine.commands.profiles:
                message = f"Unknown tool {params.name!r:.100}; there are {TOOL} and {COMMAND_TOOL}."
            raise MCPError(types.INVALID_PARAMS, message)
        try:
            request = replace(parse_request(params.arguments), principal=self._principal)

            result = await self._engine.run(request, _progress(context))
        except BridgeError as error:
            logger.info("run refused: %s", error)
            result = failed_run(error)
        except Exception:
            # A named per-request boundary: a defect here must not end other requests.
            logger.exception("a run failed inside the bridge")
            result = failed_run(BridgeError("The bridge failed; its log has the details."))
        return _to_result(result, self._engine)

    async def _run_command(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        commands = self._engine.commands

        try:
            request = parse_command(params.arguments, commands.profiles)
            result = await commands.run(request, _progress(context))
        except BridgeError as error:
            logger.info("command refused: %s", error)
            result = failed_command(error)
        except Exception:
            # A named per-request boundary, as above.
            logger.exception("a command failed inside the bridge")
            result = failed_command(BridgeError("The bridge failed; its log has the details."))
        return command_result(result)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the guide, the servers and, per server, its tools."""
        await self._engine.servers.refresh()
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
        """Offer the tools of any server."""
        template = types.ResourceTemplate(
            uri_template=TOOLS_URI + "{server}",
            name="tools",
            title="Tools of one server, with their schemas",
            mime_type="application/json",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return one resource's text."""
        uri = str(params.uri)
        try:
            mime_type, text = await self._read(uri)
        except BridgeError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
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
