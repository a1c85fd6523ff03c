"""The bridge's MCP clients, as the engine sees them, in both eras of the protocol.

With `initialize`, a question is a server request on the stream of the run's call. Since 2026-07-28
it is the result of that call, and the client repeats the call with the answer. Client programs with
known limits have a table; docs/clients.md has the measurements.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request

from bridge.errors import CannotAskError
from bridge.gate.question import one_line
from bridge.model import Json
from bridge.runs.suspended_runs import SuspendedRun, SuspendedRuns, Waiting
from bridge.upstream.client_features import Method

Context = ServerRequestContext[Any]

WAIT_SECONDS = 300.0
"""For all answers of one run over HTTP: meanwhile the run keeps its slot."""

_ELICITATION: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)


def introduction(context: Context, clear: Callable[[str], str]) -> str:
    """Return a client's name and version on one line; empty if it gives none."""
    held = context.session.client_params
    if held is None:
        return ""
    names = (held.client_info.name, held.client_info.version)
    # Redact before cutting, so that no half of a secret is left.
    redacted = [clear(name[:800]) for name in names if name]
    return " ".join(one_line(name, 80) for name in redacted)


class SameObject:
    """An HTTP client's identity: equal only for the same connection or request object."""

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other._held is self._held

    def __hash__(self) -> int:
        return id(self._held)


def missing_capability(capabilities: types.ClientCapabilities, params: BaseModel) -> str:
    """Return the capability that a client lacks for a question; empty if none. Pure."""
    if isinstance(params, types.CreateMessageRequestParams):
        sampling = capabilities.sampling
        if sampling is None:
            return "sample its model"
        with_tools = params.tools is not None or params.tool_choice is not None
        return "sample its model with tools" if with_tools and sampling.tools is None else ""
    elicitation = capabilities.elicitation
    if elicitation is None:
        return "ask its user (elicitation)"
    if isinstance(params, types.ElicitRequestURLParams):
        return "" if elicitation.url is not None else "send its user to a URL (elicitation)"
    # A client that names no mode offers forms, the first mode of the protocol.
    only_url = elicitation.url is not None and elicitation.form is None
    return "show its user a form (elicitation)" if only_url else ""


def _request_of(
    method: Method, params: Mapping[str, Json]
) -> types.ElicitRequest | types.CreateMessageRequest:
    try:
        if method == "sampling/createMessage":
            asked = types.CreateMessageRequestParams.model_validate(params, by_name=False)
            return types.CreateMessageRequest(params=asked)
        return types.ElicitRequest(params=_ELICITATION.validate_python(params, by_name=False))
    except ValidationError as error:
        message = f"The question cannot be understood: {error.errors()[0]['msg']}."
        raise CannotAskError(message) from None


def _require_capability(context: Context, params: BaseModel) -> None:
    lacking = missing_capability(capabilities_of(context), params)
    if lacking:
        wanted = str(getattr(params, "message", "") or "")[:200]
        message = f"The client that asked for this run offers no way to {lacking}."
        raise CannotAskError(message, quoted=f"Wanted: {wanted}" if wanted else "")


def as_json(result: BaseModel) -> dict[str, Json]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def known_client(context: Context) -> KnownClient:
    held = context.session.client_params
    return find_client("" if held is None else held.client_info.name)


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def capabilities_of(context: Context) -> types.ClientCapabilities:
    return context.session.client_capabilities or types.ClientCapabilities()


async def list_roots(context: Context) -> list[Json]:
    """Return the roots of a client that used `initialize`; none if it does not answer in 2 s."""
    if capabilities_of(context).roots is None:
        return []
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    with anyio.move_on_after(2.0), suppress(MCPError, ValidationError):
        result = await context.session.send_request(
            types.ListRootsRequest(), types.ListRootsResult, metadata=metadata
        )
        return list(as_json(result)["roots"])
    return []


class RunClient:
    """A run's client in either era of the protocol, across its requests for the run."""

    def __init__(self, context: Context, identity: Hashable, runs: SuspendedRuns) -> None:
        self._context: Context | None = context
        self._runs = runs
        self._capable = context
        self.identity = identity
        self._attached = anyio.Event()

    def attach(self, context: Context, *, answers: bool = False) -> None:
        """Use a request for messages and questions; `answers` marks a repeated call."""
        self._context = self._capable = context
        self._attached.set()

    def detach(self, context: Context) -> None:
        """Stop sending messages until the client's next request."""
        if self._context is context:
            self._context = None
            self._attached = anyio.Event()

    @property
    def wants_progress(self) -> bool:
        return self._capable.meta is not None and "progress_token" in self._capable.meta

    @property
    def program(self) -> str:
        return introduction(self._capable, lambda text: text)

    @property
    def visits(self) -> bool:
        elicitation = capabilities_of(self._capable).elicitation
        return elicitation is not None and elicitation.url is not None

    async def roots(self) -> list[Json]:
        """Return the client's roots; none over HTTP, where clients share servers."""
        return [] if isinstance(self._capable.request, Request) else await self._list_roots()

    async def _list_roots(self) -> list[Json]:
        return await list_roots(self._capable)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        return await self._ask("elicitation/create", params)

    async def sample(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        return await self._ask("sampling/createMessage", params)

    async def _ask(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json]:
        raise NotImplementedError

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        if self._context is not None:
            await self._context.session.report_progress(seconds, total, message)

    async def log(self, level: str, source: str, data: Json) -> None:
        if self._context is None:
            return
        params = types.LoggingMessageNotificationParams.model_validate(
            {"level": level, "logger": source, "data": data}
        )
        await self._context.session.send_notification(
            types.LoggingMessageNotification(params=params),
            related_request_id=self._context.request_id,
        )


class HandshakeClient(RunClient):
    """A client that used `initialize`."""

    def __init__(
        self, context: Context, identity: Hashable, runs: SuspendedRuns, log_level: str = ""
    ) -> None:
        super().__init__(context, identity, runs)
        self.log_level = log_level or "info"
        # Only a client that has set a level gets output as log messages.
        self.wants_output = bool(log_level)
        self._patience = WAIT_SECONDS if isinstance(context.request, Request) else math.inf

    async def _ask(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json]:
        request = _request_of(method, params)
        kind: type[BaseModel] = types.ElicitResult
        if isinstance(request, types.CreateMessageRequest):
            asked = request.params
            with_tools = asked.tools is not None or asked.tool_choice is not None
            kind = types.CreateMessageResultWithTools if with_tools else types.CreateMessageResult
        elif isinstance(request.params, types.ElicitRequestURLParams):
            # `initialize` clients require it; servers since 2026-07-28 omit it.
            request.params.elicitation_id = request.params.elicitation_id or uuid.uuid4().hex
        _require_capability(self._capable, request.params)
        answers: list[BaseModel] = []
        faults: list[CannotAskError] = []
        began = anyio.current_time()

        async def ask(context: Context, scope: anyio.CancelScope) -> None:
            metadata = ServerMessageMetadata(related_request_id=context.request_id)
            try:
                answers.append(await context.session.send_request(request, kind, metadata=metadata))
            except MCPError as error:
                said = f"It said: {error.error.message:.300}"
                faults.append(CannotAskError("The client refused the question.", quoted=said))
            except ValidationError:
                faults.append(CannotAskError("The client's answer cannot be understood."))
            scope.cancel()

        with self._runs.questions.ask(self), anyio.move_on_after(self._patience):
            # Over HTTP, if the request ends before the answer, the next request asks again.
            while not (answers or faults):
                while (context := self._context) is None:
                    await self._attached.wait()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, context, tasks.cancel_scope)
                    await self._until_gone(context)
                    if self._context is context:
                        faults.append(CannotAskError("The client's connection is broken."))
                    tasks.cancel_scope.cancel()
        self._patience -= anyio.current_time() - began
        if answers:
            return as_json(answers[0])
        message = f"This run has waited {WAIT_SECONDS:g} s for answers of its client over HTTP."
        raise faults[0] if faults else CannotAskError(message)

    async def _until_gone(self, context: Context) -> None:
        """Return when a request's stream has ended; over stdio, never."""
        request = context.request
        if not isinstance(request, Request):
            await anyio.sleep_forever()
            return
        while self._context is context and not await request.is_disconnected():  # noqa: ASYNC110
            await anyio.sleep(1.0)


class ModernClient(RunClient):
    """A client of protocol 2026-07-28."""

    def __init__(self, context: Context, identity: Hashable, runs: SuspendedRuns) -> None:
        super().__init__(context, identity, runs)
        self._rounds = 0
        self.run: SuspendedRun  # Set when the run begins.

    @property
    def log_level(self) -> str:
        """The level in the request's `_meta`; empty for none."""
        return str((self._capable.meta or {}).get(types.LOG_LEVEL_META_KEY) or "")

    @property
    def wants_output(self) -> bool:
        return bool(self.log_level)

    def attach(self, context: Context, *, answers: bool = False) -> None:
        self._rounds = self._rounds + 1 if answers else 0
        super().attach(context)

    async def _ask(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json]:
        asked = _request_of(method, params).params
        if isinstance(asked, types.ElicitRequestURLParams):
            asked.elicitation_id = None
        _require_capability(self._capable, asked)
        with self._runs.questions.ask(self):
            answer = await self._put(method, as_json(asked))
        if answer is None and method == "sampling/createMessage":
            raise CannotAskError("The client came back without an answer.")
        return answer if answer is not None else {"action": "cancel"}

    async def _list_roots(self) -> list[Json]:
        if capabilities_of(self._capable).roots is None:
            return []
        return list((await self._put("roots/list", {}) or {}).get("roots", ()))

    async def _put(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json] | None:
        # The SDK's clients fail after ten rounds, and would lose the result.
        if self._rounds >= 10:
            message = "This client was asked 10 times in this run, and would give up the next time."
            raise CannotAskError(message)
        self._runs.check_room(self.run)
        return await self.run.put(method, params)


def answers_of(responses: types.InputResponses | None) -> dict[str, dict[str, Json]]:
    return {key: as_json(response) for key, response in (responses or {}).items()}


def input_required(waiting: Waiting) -> types.InputRequiredResult:
    requests: dict[str, types.InputRequest] = {
        key: types.ListRootsRequest()
        if question.method == "roots/list"
        else _request_of(question.method, question.params)
        for key, question in waiting.questions.items()
    }
    return types.InputRequiredResult(input_requests=requests, request_state=waiting.secret)


@dataclass(frozen=True, kw_only=True)
class KnownClient:
    """The time limit and the peculiarities of an MCP client program, such as Claude Code."""

    source: str = ""  # Its name among discovery's sources, whose files may set its limit.
    seconds: float = math.inf  # How long it waits for a call, even one that shows progress.
    variable: str = ""  # The inherited variable with its limit in milliseconds.
    # It parses JSON text as structured content and refuses results that are not objects, such as
    # that of `print(1+1)`. It always shows the text.
    parses_text: bool = False
    shows_failures: bool = False  # Its model sees failures as JSON: 500 tokens instead of 74.
    defers: bool = False  # Its model sees most tools only if it searches for them.

    def patience(self, configured: Mapping[str, float], environ: Mapping[str, str]) -> float:
        """Return the seconds after which the bridge must answer a call; see `own_limits`."""
        given = environ.get(self.variable, "")
        inherited = float(given) / 1000 if given.isascii() and given.isdigit() else 0.0
        # The rest is for delivery.
        return 0.9 * configured.get(self.source, inherited or self.seconds)


CLIENTS: Mapping[str, KnownClient] = {
    "claude-code": KnownClient(source="claude-code", variable="MCP_TOOL_TIMEOUT", defers=True),
    "claude-ai": KnownClient(seconds=60),
    "codex-mcp-client": KnownClient(source="codex", seconds=300, defers=True),
    "cursor-vscode": KnownClient(seconds=300),
    "gemini-cli-mcp-client": KnownClient(
        source="gemini", seconds=600, parses_text=True, shows_failures=True
    ),
    "qwen-cli-mcp-client": KnownClient(
        source="qwen", seconds=600, shows_failures=True, defers=True
    ),
}


def find_client(name: str) -> KnownClient:
    """Return the client whose table name is a prefix of `name`; a default if there is none."""
    return next((CLIENTS[each] for each in CLIENTS if name.startswith(each)), KnownClient())
