"""Handles calls of `run_python`: starts runs, suspends them for questions, and resumes them.

A cancelled request cancels its run, but a run may outlive its answered request. A long run becomes
a task if the client has the tasks extension. Otherwise the model of a client that would stop
waiting reads the result with `retry_of` and no code.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio.to_thread
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import Field
from starlette.requests import Request

from bridge.callers.client import is_wanted
from bridge.errors import ArtifactStoreError, BridgeError, InvalidRequestError
from bridge.model import ApplyRequest, Json, Provenance, RunResult
from bridge.model.results import error_run
from bridge.offload import offload
from bridge.runs import Engine
from bridge.runs.suspended_runs import WAIT_SECONDS, SuspendedRun, Waiting
from bridge.server.arguments import parse_request
from bridge.server.clients import (
    Context,
    HandshakeClient,
    ModernClient,
    RunClient,
    SameObject,
    answers_of,
    as_json,
    input_required,
    introduction,
    is_modern,
    known_client,
)
from bridge.server.content import result_or_error
from bridge.upstream.task_calls import EXTENSION

TASK_AFTER_SECONDS = 15.0
"""A longer run becomes a task. Clients stop waiting for a silent request after 60 s."""

POLL_SECONDS = 2.0
"""Between a client's polls of a task (`pollIntervalMs`)."""


class TaskParams(types.RequestParams):
    task_id: str = Field(max_length=200)


class UpdateParams(TaskParams):
    input_responses: types.InputResponses = Field(default_factory=dict)


def has_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return is_modern(context) and EXTENSION in (capabilities and capabilities.extensions or ())


async def announce(client: HandshakeClient | ModernClient, run_id: str) -> None:
    """Send a run's id before its result, as progress or a log message if the client wants any."""
    text = f"This is run {run_id}."
    if isinstance(client, HandshakeClient):  # The end of its connection does not cancel the run.
        read = f'runtime.read_output("{run_id}", "result")'
        text += f" If the connection breaks, another run reads the result: await {read}."
    if client.wants_progress:
        await client.progress(0, text)
    elif is_wanted("info", client.log_level):
        await client.log("info", "run_python", text)


def task_status(
    run: SuspendedRun, number: str, result: types.CallToolResult | None
) -> dict[str, Any]:
    """Return the result of `tasks/get` for a run."""
    shown: dict[str, Json] = {"status": "working"}
    if result is not None:
        shown = {"status": "completed", "result": {"resultType": "complete", **as_json(result)}}
    elif run.questions:
        for question in run.questions.values():
            question.shown = True
        asked = input_required(Waiting(secret=number, questions=dict(run.questions)))
        shown = {"status": "input_required", "inputRequests": as_json(asked)["inputRequests"]}
    return {"resultType": "complete", **_task(run, number), **shown}


def _task(run: SuspendedRun, number: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "taskId": number,
        "createdAt": run.begun.isoformat(),
        "lastUpdatedAt": now.isoformat(),
        "ttlMs": int(((now - run.begun).total_seconds() + WAIT_SECONDS) * 1000),
        "pollIntervalMs": int(POLL_SECONDS * 1000),
    }


logger = logging.getLogger(__name__)


class Runs:
    def __init__(self, engine: Engine, principal: str) -> None:
        self._engine = engine
        self.principal = principal
        self._levels: OrderedDict[str, str] = OrderedDict()

    async def call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> RunResult | types.InputRequiredResult | dict[str, Any]:
        """Run a program, or resume a suspended run. Every failure is a result."""
        try:
            run = await self._run_of(context, params)
            outcome = await self._follow(context, run)
        except BridgeError as error:
            logger.info("run not resumed: %s", error)
            return error_run(error)
        return input_required(outcome) if isinstance(outcome, Waiting) else outcome

    def task(self, context: Context, number: str) -> SuspendedRun:
        if not is_modern(context):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        try:
            return self._engine.suspended.task(number, self.owner(context))
        except InvalidRequestError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None

    async def set_level(
        self, context: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        key = _session_id(context)
        self._levels[key] = params.level
        self._levels.move_to_end(key)
        if len(self._levels) > 1000:
            self._levels.popitem(last=False)
        return types.EmptyResult()

    async def _run_of(self, context: Context, params: types.CallToolRequestParams) -> SuspendedRun:
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
            run = suspended.task(number, owner)
            run.request = request
            assert isinstance(run.client, RunClient)
            run.client.attach(context)
            return run
        client: HandshakeClient | ModernClient
        if is_modern(context):
            client = ModernClient(context, self._identity(context), suspended)
        else:
            level = self._levels.get(_session_id(context), "")
            client = HandshakeClient(context, self._identity(context), level)
        return suspended.start(owner, request, client, partial(self._run, context, params, client))

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
                return {"resultType": "task", **_task(run, outcome), "status": "working"}
            summary = (
                "The run continues, but its client stops waiting for an answer. Read the result "
                f'within {WAIT_SECONDS / 60:g} minutes: run_python(retry_of="{run.run_id}"), '
                "without code."
            )
            return RunResult(run_id=run.run_id, status="running", summary=summary)
        finally:
            client.detach(context)

    async def keep_unread(
        self, context: Context, run_id: str, result: types.CallToolResult
    ) -> None:
        """Store a result for `read_output` if its client's connection is broken."""
        if not isinstance(context.request, Request) or not await context.request.is_disconnected():
            return
        redact = self._engine.servers.secrets.redactor.text
        texts = [redact(each.text) for each in result.content if each.type == "text"]
        # The run's sources are unknown here, so the result counts as tainted by all of them.
        origin = Provenance(anything=True, run_id=run_id)
        artifacts = self._engine.artifacts.of_run(self.owner(context), run_id, lambda: origin)
        data = "\n".join(texts).encode("utf-8", "replace")
        try:
            await anyio.to_thread.run_sync(artifacts.add, "result", data, "text/plain", "result")
        except ArtifactStoreError as error:
            logger.warning("the result of a run whose client is gone cannot be kept: %s", error)

    async def _run(
        self,
        context: Context,
        params: types.CallToolRequestParams,
        client: HandshakeClient | ModernClient,
        suspended: SuspendedRun,
    ) -> RunResult:
        if isinstance(client, ModernClient):
            client.run = suspended

        async def run() -> RunResult:
            if isinstance(context.request, Request):
                await announce(client, suspended.run_id)
            request = replace(
                parse_request(params.arguments),
                run_id=suspended.run_id,
                principal=self.principal,
                owner=self.owner(context),
                client=self.introduction(context),
            )
            if isinstance(request, ApplyRequest):
                return await self._engine.apply(request, client)
            # If callers cannot be distinguished, only a session's id proves its owner.
            request = replace(request, named_sessions=bool(self.principal))
            return await self._engine.run(request, client)

        return await result_or_error("run", run(), partial(error_run, run_id=suspended.run_id))

    def _identity(self, context: Context) -> Hashable:
        """Return the client's identity: over stdio the principal, otherwise its connection.

        Since 2026-07-28 HTTP has no connections, so each run has an identity of its own.
        """
        if self.principal:
            return self.principal
        held = context.session.client_params
        if held is None or is_modern(context):
            return SameObject(context)
        return SameObject(held)

    def owner(self, context: Context) -> str:
        """Return the owner of a client's runs, which must be the same when it resumes one."""
        credential = _header(context, "authorization")
        if not credential:
            return self.principal
        digest = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.principal}#{digest[:32]}"

    def introduction(self, context: Context) -> str:
        return introduction(context, self._engine.servers.secrets.redactor.text)


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
