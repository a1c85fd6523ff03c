"""Requests to one server over a given connection, with timeouts and translated errors.

Protocol: `tools/call`, `tools/list`, `resources/{list,templates/list,read}`, `prompts/{list,get}`
and `completion/complete`, each only with the server's capability; `tasks/*` for `task_calls.py`.
Over stdio most go through `direct_dispatcher.py`, else through the SDK's session.

Differs from the SDK: results are returned unvalidated (see `handshake.raw_results`); a timeout
sends `notifications/cancelled` and then probes the server. Which connection is used, and when one
is made, is `server.py`'s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import anyio
from mcp import MCPError
from mcp.types import (
    LOG_LEVEL_META_KEY,
    PaginatedRequestParams,
    Request,
)
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from bridge.clock import current_time
from bridge.errors import CallTimeoutError, ToolCallError, UpstreamError
from bridge.guest.protocol import json_text
from bridge.model import Json, ServerSpec, Tool
from bridge.offload import offload
from bridge.upstream import task_calls
from bridge.upstream.client_features import current_caller, progress_callback, time_limit
from bridge.upstream.connection import Connection
from bridge.upstream.direct_dispatcher import NEVER_SENT, DirectDispatcher
from bridge.upstream.failure import LIST_PREFIX, call_error, is_lost, lost_error, unauthorized_error
from bridge.upstream.handshake import raw_results
from bridge.upstream.listing import (
    LISTS,
    Kind,
    ListMethod,
    cache_seconds,
    is_for_models,
    parse_offers,
    parse_tools,
    read_all_pages,
    valid_name,
)
from bridge.upstream.refusal import UNAUTHORIZED, refusal_in
from bridge.upstream.results import parse_result

logger = logging.getLogger(__name__)

_encoded = json_text.encoder()
_ascii = json_text.encoder(ascii_only=True)

Method = (
    Literal["tools/call", "tools/list", "resources/read", "prompts/get", "completion/complete"]
    | ListMethod
    | task_calls.Method
)

KINDS: Mapping[Method, Kind] = {"resources/read": "resources", "prompts/get": "prompts"}


@dataclass(frozen=True)
class PendingRequest:
    """One request with its parameters.

    Attributes:
        tool: The tool's name, or the URI or name of the resource or prompt.
        arguments: The tool's arguments; for other methods all parameters.
        text: The arguments as JSON.
        what: The request in messages, as in "tool 'x'".
        seconds: Its timeout.
        task: The tool must be called as a task.
        answers, state: `inputResponses` and `requestState`; see `client_features.resolve_input`.
    """

    method: Method
    tool: str
    arguments: Mapping[str, Json]
    text: bytes
    what: str
    seconds: float
    task: bool = False
    answers: Mapping[str, Json] | None = None
    state: str | None = None


Reason = Literal["connection lost", "session unknown", "session lost", "headers", "addresses"]
"""Why a request failed that may be made again; see `server.py`."""


class AgainError(Exception):
    """A request failed so that it may be made again; `failure` is for the caller if it is not."""

    def __init__(self, reason: Reason, failure: UpstreamError) -> None:
        super().__init__()
        self.reason = reason
        self.failure = failure


class Requests:
    """Sends one server's requests, from any task; they may be cancelled at any time."""

    def __init__(self, spec: ServerSpec, call_timeout: float, max_message_bytes: int) -> None:
        self._spec = spec
        self._call_timeout = call_timeout
        self._max_bytes = max_message_bytes

    def prepare(
        self,
        method: Method,
        what: str,
        subject: str,
        params: Mapping[str, Json],
        seconds: float | None = None,
    ) -> PendingRequest:
        """Return a request with its parameters as JSON; see `PendingRequest`.

        Arguments that cannot be sent are rejected here: they would break the connection's writer,
        and so every call.

        Raises:
            UpstreamError: The parameters cannot be sent.
        """
        try:
            text = _encoded(params).encode()
            if text.count(b"{") + text.count(b"[") > 100:  # So few are not nested too deeply.
                # Raises on nesting deeper than the SDK can write.
                to_json({"params": {"arguments": params}})
        except (ValueError, TypeError, RecursionError) as error:
            raise self._unsendable(what, error) from None
        if len(text) > self._max_bytes:
            raise UpstreamError(
                f"Server {self._spec.name!r}, {what}: the arguments have {len(text)} bytes; "
                f"the limit is {self._max_bytes}.",
                server=self._spec.name,
                remedy="Send less at a time.",
                doubtful=False,
                code="message_too_large",
            )
        seconds = self._call_timeout if seconds is None else seconds
        return PendingRequest(method, subject, params, text, what, seconds)

    async def call(self, connection: Connection, call: PendingRequest) -> dict[str, Json]:
        """Send a request and return the result as received, waiting for a task's result.

        Raises:
            UpstreamError: The server returned no result.
            AgainError: It may be made again.
        """
        kind = KINDS.get(call.method)
        if kind is not None and not connection.declares(kind):
            raise self._lacking(f"offers no {kind}, only tools")
        if call.method == "completion/complete" and not connection.declares("completions"):
            raise self._lacking("completes no arguments")
        if call.method != "tools/call":
            return await self._send(connection, call)
        if call.tool in connection.view_only:
            raise self._lacking(f"has {call.what} for its own view, not for programs")
        if connection.declares("tasks", "requests", "tools"):  # since 2025-11-25
            if connection.task_required is None:
                await self.list_tools(connection)
            call = replace(call, task=call.tool in (connection.task_required or ()))
        begun = _caller_time()

        async def ask(method: task_calls.Method, params: dict[str, Json]) -> dict[str, Json]:
            left = max(0.0, begun + call.seconds - _caller_time())
            if method == "tasks/cancel":
                left = 2.0
            elif not left:
                raise self._timed_out(connection, call, begun)
            about = self.prepare(method, call.what, call.tool, params, left)
            try:
                return await self._send(connection, about)
            except AgainError as again:
                if again.reason != "session unknown":
                    raise
                # The tool was called, so the call must not be repeated.
                raise lost_error(self._spec.name, "It rejected its session.") from None

        answer = await self._send(connection, call)
        name, roots = self._spec.name, connection.roots
        result = await task_calls.await_result(name, call.what, answer, ask, roots=roots)
        return await offload(result, partial(parse_result, result))

    def _lacking(self, what: str) -> ToolCallError:
        text = f"Server {self._spec.name!r} {what}."
        return ToolCallError(text, server=self._spec.name, rpc_code=METHOD_NOT_FOUND)

    async def await_update(self, connection: Connection, uri: str, seconds: float | None) -> None:
        """Return when the server notifies a resource's change, or when its connection has ended.

        Raises:
            UpstreamError: It has no subscriptions, or sent no notification within `seconds`.
        """
        if not connection.declares("resources", "subscribe"):
            raise self._lacking("does not say when a resource changes")
        what, seconds = f"resource {uri!r:.300}", self._call_timeout if seconds is None else seconds
        client = connection.client
        assert client is not None
        try:
            with time_limit(seconds) as limit:
                await connection.updates.wait(client, uri)
        except MCPError as error:
            raise await self._translate_error(connection, what, error) from None
        if limit.cancelled_caught:
            msg = f"Server {self._spec.name!r}: {what} did not change within {seconds:g} s."
            raise CallTimeoutError(msg, server=self._spec.name, doubtful=False)

    async def _send(self, connection: Connection, call: PendingRequest) -> dict[str, Json]:
        """Return the result of a request as received; translate the errors of sending it."""
        begun = _caller_time()
        try:
            # In 2026-07-28 the SDK leaves out tools with invalid `x-mcp-header` marks.
            if connection.direct is None or (connection.modern and call.method == "tools/list"):
                return await self._send_by_session(connection, call)
            return await self._send_directly(connection.direct, call)
        except anyio.get_cancelled_exc_class():
            # No response so far; the caller's end says nothing about the server.
            connection.request_probe(max(0.0, _caller_time() - begun))
            raise
        except TimeoutError:
            raise self._timed_out(connection, call, begun) from None
        except MCPError as error:
            failure = await self._translate_error(connection, call.what, error)
            unseen = error.code == HEADER_MISMATCH and connection.direct is None
            if unseen and call.method == "tools/call" and isinstance(failure, ToolCallError):
                failure = AgainError("headers", failure)
            raise failure from None
        except (ValueError, RuntimeError) as error:
            # The SDK raises these before and after sending, so the effect is unknown.
            raise self._unsendable(call.what, error, doubtful=True) from error

    async def _send_directly(
        self, direct: DirectDispatcher, call: PendingRequest
    ) -> dict[str, Json]:
        params = call.text
        if call.method == "tools/call":
            params = b'{"name":%b,"arguments":%b}' % (_ascii(call.tool).encode(), params)
        if extras := _extras(call):
            params = b"%b,%b" % (params[:-1], _encoded(extras).encode()[1:])
        return await direct.request(call.method, params, call.seconds, label=call.tool)

    async def _send_by_session(
        self, connection: Connection, call: PendingRequest
    ) -> dict[str, Json]:
        client, kept = connection.client, set[str]()
        assert client is not None
        answers: list[dict[str, Json]] = []
        token = raw_results.set(answers)
        try:
            with time_limit(call.seconds) as limit:
                if call.method == "tools/list":
                    page = PaginatedRequestParams(**call.arguments) if call.arguments else None
                    kept = {tool.name for tool in (await client.list_tools(params=page)).tools}
                else:
                    progress = progress_callback(self._spec.name, call.tool, limit, call.seconds)
                    request = _request(call, modern=connection.modern)
                    await client.send_request(request, _ANY_RESULT, progress_callback=progress)
        except ValidationError as error:
            logger.debug("server %r: %s has an odd shape: %s", self._spec.name, call.what, error)
        finally:
            raw_results.reset(token)
        if not answers:
            raise TimeoutError
        answer = answers[-1]
        if kept and isinstance(answer.get("tools"), list):
            answer["tools"] = [e for e in answer["tools"] if valid_name(e) in kept]
        return answer

    async def list_tools(self, connection: Connection) -> tuple[tuple[Tool, ...], float]:
        """Return the server's tools, and for how many seconds they may be cached.

        Raises:
            UpstreamError: The server returned no list.
        """
        begun, fresh, what = current_time(), math.inf, f"{LIST_PREFIX}tools"

        async def fetch(params: dict[str, Json], seconds: float) -> Mapping[str, Json]:
            nonlocal fresh
            listing = self.prepare("tools/list", what, "", params, seconds)
            page = await self._send(connection, listing)
            if connection.modern:
                announced = connection.declares("tools", "list_changed")
                fresh = min(fresh, cache_seconds(page, announced=announced))
            return page

        try:
            entries = await read_all_pages(self._spec.name, fetch, self._call_timeout)
        except CallTimeoutError:
            # A list is cheap: a server that does not return it, or anything else, hangs.
            if connection.endpoint.last_heard < begun:
                connection.mark_silent()
            raise
        connection.task_required = task_calls.task_required_tools(entries)
        connection.view_only = frozenset(
            valid_name(entry) or "" for entry in entries if not is_for_models(entry)
        )
        return await offload(entries, partial(parse_tools, self._spec.name, entries)), fresh

    async def list_offers(self, connection: Connection, kind: Kind) -> tuple[dict[str, Json], ...]:
        """Return the server's resources, resource templates or prompts; () without the capability.

        Raises:
            UpstreamError: The server returned no list.
        """
        if not connection.declares(LISTS[kind].capability):
            return ()
        what, seconds = f"{LIST_PREFIX}{LISTS[kind].words}", self._call_timeout

        async def fetch(params: dict[str, Json], seconds: float) -> Mapping[str, Json]:
            # Unlike the list of tools it may take a server long; it is not restarted for that.
            page = self.prepare(LISTS[kind].method, what, "", params, seconds)
            return await self._send(connection, page)

        entries = await read_all_pages(self._spec.name, fetch, seconds, LISTS[kind].key)
        return await offload(entries, partial(parse_offers, self._spec.name, kind, entries))

    def _timed_out(
        self, connection: Connection, call: PendingRequest, begun: float
    ) -> CallTimeoutError:
        connection.request_probe(call.seconds)
        # Progress may have moved the limit.
        seconds = max(call.seconds, round(_caller_time() - begun))
        msg = (
            f"Server {self._spec.name!r} did not answer {call.what} within {seconds:g} s; "
            "it was told to stop."
        )
        # Written while the request was on its way, or just before.
        if noise := connection.endpoint.noise_since(current_time() - seconds - 0.5):
            msg += f" It wrote something that is not a message: {noise!r}."
        remedy = "Ask for less; the user can raise `call_timeout`."
        if connection.others:
            calls = f"{connection.others} other call{'s' if connection.others > 1 else ''}"
            remedy = f"{calls} to this server waited too; make fewer at once."
        return CallTimeoutError(msg, server=self._spec.name, remedy=remedy)

    async def _translate_error(
        self, connection: Connection, what: str, error: MCPError
    ) -> Exception:
        if is_lost(error):
            return await self._lost(connection, what, sent=error.data is not NEVER_SENT)
        failure = call_error(self._spec, what, error)
        refusal, _ = refusal_in(error)
        if refusal is not None and not refusal.status:
            # It may be up again at the next request, and then without this session.
            connection.retire(failure.host_detail)
        elif await connection.has_lost_session(error, refusal):
            if refusal is None or refusal.status != 404:
                return AgainError("session lost", failure)
            twice = lost_error(self._spec.name, "It rejected its session (HTTP 404) twice.")
            return AgainError("session unknown", twice)
        if refusal is not None and refusal.status in UNAUTHORIZED:
            return unauthorized_error(self._spec, refusal)
        return failure

    async def _lost(self, connection: Connection, what: str, *, sent: bool) -> Exception:
        # The caller may get the error before the owner task, and may call again at once.
        connection.mark_broken()
        if not connection.endpoint.pid:
            # The owner task sets it in its next step, unless closing waits for the server.
            with anyio.move_on_after(0.5):
                await connection.ended.wait()
        end_report = connection.end_report or connection.endpoint.end_report()
        cause = connection.endpoint.cause_of_end
        return lost_error(self._spec.name, end_report, sent=sent, what=what, cause=cause)

    def _unsendable(self, what: str, error: Exception, *, doubtful: bool = False) -> ToolCallError:
        return ToolCallError(
            f"Server {self._spec.name!r}, {what}: the arguments cannot be sent as JSON: {error}",
            server=self._spec.name,
            rpc_code=INVALID_PARAMS,
            doubtful=doubtful,
        )


_ANY_RESULT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


def _request(call: PendingRequest, *, modern: bool) -> Request[Any, Any]:
    """Return a request for the SDK's session."""
    params, caller = dict(call.arguments), current_caller()
    if call.method == "tools/call":
        params = {"name": call.tool, "arguments": params}
    params |= _extras(call)
    # Before 2026-07-28 the level is set by `logging/setLevel`, not in each request.
    if caller is not None and caller.log_level and modern:
        params["_meta"] = {LOG_LEVEL_META_KEY: caller.log_level}
    of_task = call.method.startswith("tasks/")
    kind: type[Request[Any, Any]] = task_calls.TaskRequest if of_task else Request[Any, Any]
    return kind(method=call.method, params=params)


def _extras(call: PendingRequest) -> dict[str, Json]:
    """Return the parameters of a call in addition to its own; a task's `ttl` is its timeout."""
    extras = {
        "task": {"ttl": math.ceil(call.seconds * 1000)} if call.task else None,
        "inputResponses": call.answers,
        "requestState": call.state,
    }
    return {name: value for name, value in extras.items() if value is not None}


def _caller_time() -> float:
    """Return the time of the caller's clock, by which its calls are limited."""
    caller = current_caller()
    return current_time() if caller is None else caller.clock.now()
