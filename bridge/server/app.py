"""The bridge as an MCP server: maps MCP's messages to the engine, without decisions of its own."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import Field
from starlette.requests import Request

from bridge import __version__
from bridge.artifacts.store import RunArtifacts
from bridge.callers.client import is_wanted
from bridge.errors import ArtifactStoreError, BridgeError, InvalidRequestError
from bridge.event_loop import background_task, offload
from bridge.model import ApplyRequest, CommandResult, Json, Provenance, RunResult
from bridge.model.runs import error_result, error_run
from bridge.runs import Engine
from bridge.runs.suspended_runs import WAIT_SECONDS, SuspendedRun, Waiting
from bridge.sandbox.backend import limits_for
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema, parse_request
from bridge.server.clients import (
    Context,
    HandshakeClient,
    ModernClient,
    RunClient,
    SameObject,
    answers_of,
    as_json,
    capabilities_of,
    input_required,
    introduction,
    is_modern,
    known_client,
)
from bridge.server.content import make_tool, redact_content, result_or_error, to_result
from bridge.server.resources import SESSIONS_URI, Notices, NotifyingServer, Resources
from bridge.server.tools import (
    COMMAND_TOOL,
    SEARCH_TOOL,
    command_result,
    command_tool,
    parse_command,
    search_result,
    search_tool,
)
from bridge.text import without_values
from bridge.upstream.connection import TASKS_EXTENSION

logger = logging.getLogger(__name__)

NAME = "mcp-code-bridge"

TITLE = "MCP code bridge"

TOOL = "run_python"

TASK_AFTER_SECONDS = 15.0
"""A longer run becomes a task. Clients stop waiting for a silent request after 60 s."""

POLL_SECONDS = 2.0
"""Between a client's polls of a task (`pollIntervalMs`)."""


class TaskParams(types.RequestParams):
    task_id: str = Field(max_length=200)


class UpdateParams(TaskParams):
    input_responses: types.InputResponses = Field(default_factory=dict)


def has_tasks(context: Context) -> bool:
    return is_modern(context) and TASKS_EXTENSION in (capabilities_of(context).extensions or ())


async def announce(client: HandshakeClient | ModernClient, run_id: str, *, outlives: bool) -> None:
    """Send a run's id before its result, as progress or a log message if the client wants any."""
    text = f"This is run {run_id}."
    if outlives and isinstance(client, HandshakeClient):
        read = f'runtime.read_output("{run_id}", "result")'
        text += f" If the connection breaks, another run reads the result: await {read}."
    if client.wants_progress:
        await client.progress(0, text)
    elif is_wanted("info", client.log_level):
        await client.log("info", "run_python", text)


def task_status(
    run: SuspendedRun, number: str, result: types.CallToolResult | None
) -> dict[str, Any]:
    shown: dict[str, Json] = {"status": "working"}
    if result is not None:
        shown = {"status": "completed", "result": {"resultType": "complete", **as_json(result)}}
    elif run.questions:
        for question in run.questions.values():
            question.shown = True
        asked = input_required(Waiting(secret=number, questions=dict(run.questions)))
        shown = {"status": "input_required", "inputRequests": as_json(asked)["inputRequests"]}
    return {"resultType": "complete", **_task_fields(run, number), **shown}


def _task_fields(run: SuspendedRun, number: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "taskId": number,
        "createdAt": run.begun.isoformat(),
        "lastUpdatedAt": now.isoformat(),
        "ttlMs": int(((now - run.begun).total_seconds() + WAIT_SECONDS) * 1000),
        "pollIntervalMs": int(POLL_SECONDS * 1000),
    }


NoteRun = Callable[[types.RequestId, str], None]


def build_server(
    engine: Engine, *, principal: str = "", note_run: NoteRun = lambda *_: None
) -> NotifyingServer:
    """Return the MCP server of one client, or of all clients over HTTP.

    Args:
        note_run: Called with a request's id and the id of its run, before the run begins.
    """
    handlers = _Handlers(engine, principal, note_run)
    notices = handlers.notices
    resources = Resources(engine, handlers.owner, notices)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        with engine.servers.inventory.notifying(notices.note_change):
            async with background_task(notices.run):
                yield {}

    server = NotifyingServer(
        NAME,
        notices,
        lifespan=lifespan,
        version=__version__,
        title=TITLE,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_resource_templates,
        on_read_resource=resources.read_resource,
        on_subscribe_resource=notices.subscribe,
        on_unsubscribe_resource=notices.unsubscribe,
    )
    # The constructor would warn, since protocol 2026-07-28 has no such request.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, handlers.set_level)
    changed = "notifications/roots/list_changed"
    server.add_notification_handler(changed, types.NotificationParams, handlers.note_changed_roots)
    server.middleware.append(handlers.introduce)
    server.extensions[TASKS_EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, handlers.get_task)
    server.add_request_handler("tasks/update", UpdateParams, handlers.update_task)
    server.add_request_handler("tasks/cancel", TaskParams, handlers.cancel_task)
    return server


async def tool_list(engine: Engine, *, brief: bool = False) -> list[types.Tool]:
    """Return the tools with their current descriptions; `brief` if the client defers tools."""
    settings, limits = engine.settings, limits_for(engine.settings)
    # Claude Code's tool search matches the hint, in addition to names and descriptions.
    hint = "call tools of all the user's MCP servers from a Python program"
    tool = make_tool(
        TOOL,
        "Run Python with MCP tools",
        open_world=True,
        _meta={"anthropic/alwaysLoad": True, "anthropic/searchHint": hint},
        description=await engine.guide.tool_description(brief=brief),
        input_schema=input_schema(
            limits.longest_timeout,
            limits.timeout,
            packages=bool(engine.settings.allowed_packages),
            listed_only=settings.listed_servers_only,
            profiles=settings.profiles,
        ),
        # A client with a schema refuses results without structured content.
        output_schema=OUTPUT_SCHEMA if settings.structured == "content" else None,
    )
    profiles = engine.commands.profiles
    commands = [command_tool(profiles, settings.structured)] if profiles else []
    return [tool, search_tool(), *commands]


class _Handlers:
    """The handlers of requests that concern tools; the low-level server handles no errors for them.

    A cancelled request cancels its run, but a run may outlive its answered request. A long run
    becomes a task if the client has the tasks extension. Otherwise the model of a client that would
    stop waiting reads the result with `retry_of` and no code.
    """

    def __init__(self, engine: Engine, principal: str, note_run: NoteRun) -> None:
        self._engine = engine
        self._principal = principal
        self._note_run = note_run
        self.notices = Notices(engine.guide.tool_description, engine.servers.names, self.owner)
        self._levels: OrderedDict[str, str] = OrderedDict()

    async def introduce(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            await self._engine.servers.refresh()
            result["instructions"] = self._engine.guide.instructions()
        return result

    async def note_changed_roots(self, context: Context, params: types.NotificationParams) -> None:
        self._engine.servers.pool.roots_changed()

    async def set_level(
        self, context: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        key = _session_id(context)
        self._levels[key] = params.level
        self._levels.move_to_end(key)
        if len(self._levels) > 1000:
            self._levels.popitem(last=False)
        return types.EmptyResult()

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        await self._engine.servers.refresh()
        await self.notices.note_listing(context)
        tools = await tool_list(self._engine, brief=known_client(context).defers)
        # Last: the first responses are more urgent.
        self._engine.servers.load_unknown_later()
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        """Call a tool of the bridge. A failed run is a result that the model can read."""
        result = await self._call_tool(context, params)
        # The engine has redacted questions already.
        if isinstance(result, types.CallToolResult):
            self._finish(context, result)
        return result

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        if params.name == COMMAND_TOOL and self._engine.commands.profiles:
            return await self._run_command(context, params)
        if params.name == SEARCH_TOOL:
            return await search_result(self._engine, params.arguments, self._principal)
        if params.name != TOOL:
            # The specification makes an unknown tool a protocol error: -32602, invalid params.
            names = ", ".join(tool.name for tool in await tool_list(self._engine))
            message = f"Unknown tool {params.name!r:.100}; there are: {names}."
            raise MCPError(types.INVALID_PARAMS, message)
        try:
            run = await self._get_run(context, params)
            outcome = await self._follow(context, run)
        except BridgeError as error:
            logger.info("run not resumed: %s", error)
            outcome = error_run(error)
        if isinstance(outcome, Waiting):
            return input_required(outcome)
        if isinstance(outcome, dict):
            return outcome
        result = self._result(context, outcome)
        if outcome.status != "running":
            await self._keep_unread(context, outcome.run_id, result)
        return result

    async def _get_run(self, context: Context, params: types.CallToolRequestParams) -> SuspendedRun:
        suspended = self._engine.suspended
        owner, given = self.owner(context), params.arguments or {}
        called = [params.name, given]
        request = await offload(called, partial(fingerprint, called))
        if params.request_state is not None:
            run = suspended.resume(params.request_state, owner, request)
            assert isinstance(run.client, ModernClient)
            run.client.attach(context, answers=True)
            run.accept_answers(answers_of(params.input_responses))
            return run
        number = given.get("retry_of")
        other = any(given.get(name) for name in ("code", "apply", "end_session"))
        if number and isinstance(number, str) and not other:
            # The client waits for that run again.
            try:
                run = suspended.task(number, owner)
            except InvalidRequestError as error:
                # The name of a bridge may stand before the id.
                run_id = number.rpartition(".")[2][:40]
                await self._engine.gate.fates.explain(error, run_id, owner)
                raise
            run.request = request
            assert isinstance(run.client, RunClient)
            run.client.attach(context)
            return run
        client: HandshakeClient | ModernClient
        if is_modern(context):
            client = ModernClient(context, self._identity(context), suspended)
        else:
            level = self._levels.get(_session_id(context), "")
            client = HandshakeClient(context, self._identity(context), suspended, level)
        run = suspended.start(
            owner, request, client, partial(self._execute, context, params, client)
        )
        if context.request_id is not None:
            self._note_run(context.request_id, run.run_id)
        return run

    async def _follow(
        self, context: Context, run: SuspendedRun
    ) -> RunResult | Waiting | dict[str, Any]:
        client = run.client
        assert isinstance(client, RunClient)
        engine = self._engine
        patience = TASK_AFTER_SECONDS
        if not has_tasks(context):
            limits = engine.servers.discovery.own_limits
            patience = known_client(context).patience(limits, engine.settings.environ)
        try:
            outcome = await engine.suspended.follow(run, patience=patience)
            if not isinstance(outcome, str):
                return outcome
            if has_tasks(context):
                return {"resultType": "task", **_task_fields(run, outcome), "status": "working"}
            summary = (
                "The run continues, but its client stops waiting for an answer. Read the result "
                f'within {WAIT_SECONDS / 60:g} minutes: run_python(retry_of="{run.run_id}"), '
                "without code."
            )
            return RunResult(run_id=run.run_id, status="running", summary=summary)
        finally:
            client.detach(context)

    async def _execute(
        self,
        context: Context,
        params: types.CallToolRequestParams,
        client: HandshakeClient | ModernClient,
        suspended: SuspendedRun,
    ) -> RunResult:
        if isinstance(client, ModernClient):
            client.run = suspended

        async def run() -> RunResult:
            # Over HTTP the run may outlive its connection, and another bridge may know its fate.
            web = isinstance(context.request, Request)
            if web or self._engine.gate.fates.are_shared:
                await announce(client, suspended.run_id, outlives=web)
            request = replace(
                parse_request(params.arguments),
                run_id=suspended.run_id,
                principal=self._principal,
                owner=self.owner(context),
                client=introduction(context, self._engine.servers.secrets.redactor.text),
            )
            if isinstance(request, ApplyRequest):
                return await self._engine.apply(request, client)
            # If callers cannot be distinguished, only a session's id proves its owner.
            request = replace(request, named_sessions=bool(self._principal))
            return await self._engine.run(request, client)

        return await result_or_error("run", run(), partial(error_run, run_id=suspended.run_id))

    async def _keep_unread(
        self, context: Context, run_id: str, result: types.CallToolResult
    ) -> None:
        """Store a result for `read_output` if its client's connection is broken."""
        if not isinstance(context.request, Request) or not await context.request.is_disconnected():
            return
        redact = self._engine.servers.secrets.redactor.text
        texts = [redact(each.text) for each in result.content if each.type == "text"]
        # The run's sources are unknown here, so the result counts as tainted by all of them.
        origin = Provenance(anything=True, run_id=run_id)
        artifacts = RunArtifacts(
            self._engine.artifacts, self.owner(context), run_id, lambda: origin
        )
        data = "\n".join(texts).encode("utf-8", "replace")
        try:
            await artifacts.store.run(artifacts.add, "result", data, "text/plain", "result")
        except ArtifactStoreError as error:
            logger.warning("the result of a run whose client is gone cannot be kept: %s", error)

    def _result(self, context: Context, outcome: RunResult) -> types.CallToolResult:
        owner = self.owner(context)
        if outcome.artifacts and owner:
            self.notices.note_update("", owner)
        if outcome.session is not None and owner:
            self.notices.note_update(SESSIONS_URI, owner)
        return to_result(outcome, self._engine, protocol_version=context.protocol_version)

    def _finish(self, context: Context, result: types.CallToolResult) -> None:
        """Redact a result; change it for clients that would hide its text or show its record."""
        redact_content(result, self._engine.servers.secrets.redactor)
        client = known_client(context)
        if result.is_error and client.shows_failures:
            result.meta = None
        if not result.is_error and client.parses_text:
            result.structured_content = result.structured_content or {}

    def _task(self, context: Context, number: str) -> SuspendedRun:
        if not is_modern(context):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        try:
            return self._engine.suspended.task(number, self.owner(context))
        except InvalidRequestError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None

    async def get_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        run = self._task(context, params.task_id)
        result = None if run.result is None else self._result(context, run.result)
        if result is not None:
            self._finish(context, result)
        return task_status(run, params.task_id, result)

    async def update_task(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        run = self._task(context, params.task_id)
        run.accept_answers(answers_of(params.input_responses), partly=True)
        return {}

    async def cancel_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        self._task(context, params.task_id).scope.cancel()
        return {}

    async def _run_command(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        commands = self._engine.commands
        client = HandshakeClient(context, self._principal, self._engine.suspended)

        async def run() -> CommandResult:
            with self._engine.running_runs.track():
                return await commands.run(
                    parse_command(params.arguments, commands.profiles),
                    client.progress if client.wants_progress else None,
                    principal=self._principal,
                    client=introduction(context, self._engine.servers.secrets.redactor.text),
                )

        result = await result_or_error("command", run(), partial(error_result, kind=CommandResult))
        return command_result(result, self._engine.settings.structured)

    def owner(self, context: Context) -> str:
        """Return the owner of a client's runs, which must be the same when it resumes one."""
        credential = _header(context, "authorization")
        if not credential:
            return self._principal
        digest = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._principal}#{digest[:32]}"

    def _identity(self, context: Context) -> Hashable:
        """Return the client's identity: over stdio this object, otherwise its connection.

        Since 2026-07-28 HTTP has no connections, so each run has an identity of its own.
        """
        if self._principal:
            return SameObject(self)
        held = context.session.client_params
        if held is None or is_modern(context):
            return SameObject(context)
        return SameObject(held)


def _header(context: Context, name: str) -> str:
    return str((getattr(context.request, "headers", None) or {}).get(name, ""))


def _session_id(context: Context) -> str:
    return _header(context, "mcp-session-id")[:200]


def fingerprint(value: Json) -> bytes:
    """Return a digest of a JSON value.

    It does not use `json.dumps`, which blocks the event loop even from a thread: 0.3 s for 48 MiB.
    """
    kind = type(value).__name__.encode()
    if isinstance(value, dict):
        value = [part for key in sorted(value) for part in (key, value[key])]
    if isinstance(value, list):
        data = b"".join(map(fingerprint, value))
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    else:
        data = repr(value).encode()
    return hashlib.sha256(b"%b %b" % (kind, data)).digest()


def error_server(error: BridgeError) -> Server[Any]:
    """Return a server whose tools all return the error.

    The error omits the setting's value, which may be a secret in the wrong place.
    """
    said = (
        f"The bridge's settings have a mistake, so it runs nothing. {without_values(str(error))} "
        "Tell the user: correct it (`mcp-code-bridge doctor` shows it whole), then reconnect this "
        "MCP server."
    )

    async def list_tools(context: Context, params: object) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=said, input_schema={"type": "object"})
            for name in (TOOL, SEARCH_TOOL)
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: object) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=said)], is_error=True)

    return Server(
        NAME,
        version=__version__,
        title=TITLE,
        instructions=said,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
