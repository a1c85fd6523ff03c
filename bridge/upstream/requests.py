"""One request over one connection: its parameters, its transport, and translation of its errors.

Over stdio most requests go through `direct_dispatcher.py`, else through the SDK's session. Differs
from the SDK: results are unvalidated (see `handshake.raw_results`), and a timeout sends
`notifications/cancelled` and probes the server. `server.py` decides on repetitions.

A response may also be a task, whose result follows later. In 2025-11-25 `params.task` asks for it,
and `tasks/result` waits. In the extension of 2026-07-28 the server decides (`resultType: task`),
and `tasks/get` polls. The SDK implements neither.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import anyio
from mcp import MCPError, types
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from bridge.errors import CallTimeoutError, CannotAskError, ToolCallError, UpstreamError
from bridge.event_loop import current_time, offload
from bridge.guest.protocol import json_text
from bridge.guest.schema.schemas import as_mapping
from bridge.model import Json, Tool
from bridge.upstream import listing
from bridge.upstream.client_features import (
    answer_input_requests,
    current_caller,
    progress_callback,
    time_limit,
)
from bridge.upstream.connection import Connection
from bridge.upstream.direct_dispatcher import NEVER_SENT
from bridge.upstream.failure import LIST_PREFIX, call_error, is_lost, lost_error, unauthorized_error
from bridge.upstream.framing import parse_result
from bridge.upstream.handshake import raw_results
from bridge.upstream.transport import UNAUTHORIZED, refusal_in

logger = logging.getLogger(__name__)

_encoded = json_text.encoder()
_ascii = json_text.encoder(ascii_only=True)

TaskMethod = Literal["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"]

Method = (
    Literal["tools/call", "tools/list", "resources/read", "prompts/get", "completion/complete"]
    | listing.ListMethod
    | TaskMethod
)

LAST_RESERVED = -32000  # Codes up to it reject a request, but a task shows that it was accepted.

KINDS: Mapping[Method, listing.Kind] = {"resources/read": "resources", "prompts/get": "prompts"}

Reason = Literal["", "connection lost", "session unknown", "session lost", "headers", "addresses"]
"""Why a failed request may be repeated; see `server.py`. Empty if it may not."""


class TaskRequest(types.Request[dict[str, Any], TaskMethod]):
    """A request about a task; over HTTP its `taskId` is also in the `Mcp-Name` header."""

    name_param = "taskId"


@dataclass(frozen=True)
class PendingRequest:
    """One request with its parameters."""

    method: Method
    tool: str  # Its name, or the URI or name of the resource or prompt.
    arguments: Mapping[str, Json]  # The tool's arguments; for other methods all parameters.
    text: bytes  # The arguments as JSON.
    what: str  # The request in messages, as in "tool 'x'".
    seconds: float
    task: bool = False
    answers: Mapping[str, Json] | None = None  # `inputResponses`
    state: str | None = None  # `requestState`; see `client_features.resolve_input`.

    def encode_params(self) -> bytes:
        params = self.text
        if self.method == "tools/call":
            params = b'{"name":%b,"arguments":%b}' % (_ascii(self.tool).encode(), params)
        if extras := self._extras():
            params = b"%b,%b" % (params[:-1], _encoded(extras).encode()[1:])
        return params

    def for_session(self, *, modern: bool) -> types.Request[Any, Any]:
        params, caller = dict(self.arguments), current_caller()
        if self.method == "tools/call":
            params = {"name": self.tool, "arguments": params}
        params |= self._extras()
        # Before 2026-07-28 the level is set by `logging/setLevel`, not in each request.
        if caller is not None and caller.log_level and modern:
            params["_meta"] = {types.LOG_LEVEL_META_KEY: caller.log_level}
        of_task = self.method.startswith("tasks/")
        kind: type[types.Request[Any, Any]] = TaskRequest if of_task else types.Request[Any, Any]
        return kind(method=self.method, params=params)

    def _extras(self) -> dict[str, Json]:
        # A task's `ttl` is the call's timeout.
        extras = {
            "task": {"ttl": math.ceil(self.seconds * 1000)} if self.task else None,
            "inputResponses": self.answers,
            "requestState": self.state,
        }
        return {name: value for name, value in extras.items() if value is not None}


def prepare(
    server: str,
    method: Method,
    what: str,
    subject: str,
    params: Mapping[str, Json],
    seconds: float,
    *,
    max_bytes: float = math.inf,
) -> PendingRequest:
    """Return a request with its parameters as JSON.

    Arguments beyond JSON would break the connection's writer, and so every call.
    """
    try:
        text = _encoded(params).encode()
        if text.count(b"{") + text.count(b"[") > 100:  # Fewer cannot be nested too deeply.
            # Raises on nesting deeper than the SDK can write.
            to_json({"params": {"arguments": params}})
    except (ValueError, TypeError, RecursionError) as error:
        raise _unsendable(server, what, error) from None
    if len(text) > max_bytes:
        raise UpstreamError(
            f"Server {server!r}, {what}: the arguments have {len(text)} bytes; "
            f"the limit is {max_bytes}.",
            server=server,
            remedy="Send less at a time.",
            doubtful=False,
            code="message_too_large",
        )
    return PendingRequest(method, subject, params, text, what, seconds)


def _unsendable(
    server: str, what: str, error: Exception, *, doubtful: bool = False
) -> ToolCallError:
    return ToolCallError(
        f"Server {server!r}, {what}: the arguments cannot be sent as JSON: {error}",
        server=server,
        rpc_code=types.INVALID_PARAMS,
        doubtful=doubtful,
    )


async def send(connection: Connection, call: PendingRequest) -> dict[str, Json]:
    """Send a request and return the result as received, waiting for a task's result.

    Raises:
        UpstreamError: The request cannot be sent or timed out, or its task failed.
        MCPError: The server answered with an error, or the connection has ended; see `translate`.
    """
    kind, is_call = KINDS.get(call.method), call.method == "tools/call"
    if kind is not None and not connection.declares(kind):
        raise _lack_error(connection, f"offers no {kind}, only tools")
    if call.method == "completion/complete" and not connection.declares("completions"):
        raise _lack_error(connection, "completes no arguments")
    if is_call and call.tool in connection.view_only:
        raise _lack_error(connection, f"has {call.what} for its own view, not for programs")
    if is_call and connection.declares("tasks", "requests", "tools"):  # since 2025-11-25
        if connection.task_required is None:
            try:
                await list_tools(connection)
            except MCPError as error:
                # The call was not sent, so its tool has not failed.
                raise (await translate(connection, f"{LIST_PREFIX}tools", error))[1] from None
        call = replace(call, task=call.tool in (connection.task_required or ()))
    begun = _caller_time()
    try:
        # In 2026-07-28 the SDK leaves out tools with invalid `x-mcp-header` marks.
        if connection.direct is None or (connection.modern and call.method == "tools/list"):
            answer = await _send_by_session(connection, call)
        else:
            answer = await connection.direct.request(
                call.method, call.encode_params(), call.seconds, label=call.tool
            )
    except anyio.get_cancelled_exc_class():
        # A cancelled caller says nothing about the server, which did not respond so far.
        connection.request_probe(max(0.0, _caller_time() - begun))
        raise
    except TimeoutError:
        raise _timed_out(connection, call, begun) from None
    except (ValueError, RuntimeError) as error:
        # The SDK raises these before and after sending, so the effect is unknown.
        raise _unsendable(connection.spec.name, call.what, error, doubtful=True) from error
    if not is_call:
        return answer
    if answer.get("resultType") == "task" or "task" in answer:
        answer = await _await_task(connection, call, begun, answer)
    return await offload(answer, partial(parse_result, answer))


async def _ask_about_task(
    connection: Connection,
    call: PendingRequest,
    begun: float,
    method: TaskMethod,
    params: dict[str, Json],
) -> dict[str, Json]:
    """Send a request about a task, within the remaining time of the call."""
    left = max(0.0, begun + call.seconds - _caller_time())
    if method == "tasks/cancel":
        left = 2.0
    elif not left:
        raise _timed_out(connection, call, begun)
    name = connection.spec.name
    about = prepare(name, method, call.what, call.tool, params, left)
    try:
        return await send(connection, about)
    except MCPError as error:
        reason, failure = await translate(connection, call.what, error)
        if reason == "session unknown":
            # The tool was called, so the call must not be repeated.
            failure = lost_error(name, "It rejected its session.")
        raise failure from None


def _lack_error(connection: Connection, what: str) -> ToolCallError:
    name = connection.spec.name
    return ToolCallError(f"Server {name!r} {what}.", server=name, rpc_code=types.METHOD_NOT_FOUND)


async def await_update(connection: Connection, uri: str, seconds: float) -> None:
    """Return when the server notifies a resource's change, or when its connection has ended."""
    if not connection.declares("resources", "subscribe"):
        raise _lack_error(connection, "does not say when a resource changes")
    client, name = connection.client, connection.spec.name
    assert client is not None
    with time_limit(seconds) as limit:
        await connection.updates.wait(client, uri)
    if limit.cancelled_caught:
        msg = f"Server {name!r}: resource {uri!r:.300} did not change within {seconds:g} s."
        raise CallTimeoutError(msg, server=name, doubtful=False)


async def _send_by_session(connection: Connection, call: PendingRequest) -> dict[str, Json]:
    client, kept, name = connection.client, set[str](), connection.spec.name
    assert client is not None
    answers: list[dict[str, Json]] = []
    token = raw_results.set(answers)
    try:
        with time_limit(call.seconds) as limit:
            if call.method == "tools/list":
                page = types.PaginatedRequestParams(**call.arguments) if call.arguments else None
                kept = {tool.name for tool in (await client.list_tools(params=page)).tools}
            else:
                caller = current_caller()
                move = None if caller is None else partial(caller.clock.move_limit, limit)
                progress = progress_callback(name, call.tool, call.seconds, move)
                request = call.for_session(modern=connection.modern)
                await client.send_request(request, _ANY_RESULT, progress_callback=progress)
    except ValidationError as error:
        logger.debug("server %r: %s has an odd shape: %s", name, call.what, error)
    finally:
        raw_results.reset(token)
    if not answers:
        raise TimeoutError
    answer = answers[-1]
    if kept and isinstance(answer.get("tools"), list):
        answer["tools"] = [e for e in answer["tools"] if listing.valid_name(e) in kept]
    return answer


_ANY_RESULT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


async def list_tools(connection: Connection) -> tuple[tuple[Tool, ...], float]:
    """Return the server's tools, and for how many seconds they may be cached."""
    begun, fresh, name = current_time(), math.inf, connection.spec.name

    async def fetch(params: dict[str, Json], seconds: float) -> Mapping[str, Json]:
        nonlocal fresh
        request = prepare(name, "tools/list", f"{LIST_PREFIX}tools", "", params, seconds)
        page = await send(connection, request)
        if connection.modern:
            announced = connection.declares("tools", "list_changed")
            fresh = min(fresh, listing.cache_seconds(page, announced=announced))
        return page

    try:
        entries = await listing.read_all_pages(name, fetch, connection.call_timeout)
    except CallTimeoutError:
        # A list is cheap, so a server that sends nothing at all hangs.
        if connection.endpoint.last_heard < begun:
            connection.mark_silent()
        raise
    execution = [(entry, as_mapping(entry.get("execution"))) for entry in map(as_mapping, entries)]
    connection.task_required = frozenset(
        str(entry.get("name")) for entry, how in execution if how.get("taskSupport") == "required"
    )
    connection.view_only = frozenset(
        listing.valid_name(entry) or "" for entry in entries if not listing.is_for_models(entry)
    )
    return await offload(entries, partial(listing.parse_tools, name, entries)), fresh


async def list_offers(connection: Connection, kind: listing.Kind) -> tuple[dict[str, Json], ...]:
    """Return the server's resources, resource templates or prompts; () without the capability."""
    listed, name = listing.LISTS[kind], connection.spec.name
    if not connection.declares(listed.capability):
        return ()

    async def fetch(params: dict[str, Json], seconds: float) -> Mapping[str, Json]:
        # Unlike the list of tools it may take long, so the server is not restarted.
        what = f"{LIST_PREFIX}{listed.words}"
        return await send(connection, prepare(name, listed.method, what, "", params, seconds))

    entries = await listing.read_all_pages(name, fetch, connection.call_timeout, listed.key)
    return await offload(entries, partial(listing.parse_offers, name, kind, entries))


def _timed_out(connection: Connection, call: PendingRequest, begun: float) -> CallTimeoutError:
    connection.request_probe(call.seconds)
    # Progress may have moved the limit.
    seconds, name = max(call.seconds, round(_caller_time() - begun)), connection.spec.name
    msg = f"Server {name!r} did not answer {call.what} within {seconds:g} s; it was told to stop."
    # Written during the request, or just before.
    if noise := connection.endpoint.noise_since(current_time() - seconds - 0.5):
        msg += f" It wrote something that is not a message: {noise!r}."
    remedy = "Ask for less; the user can raise `call_timeout`."
    if connection.others:
        calls = f"{connection.others} other call{'s' if connection.others > 1 else ''}"
        remedy = f"{calls} to this server waited too; make fewer at once."
    return CallTimeoutError(msg, server=name, remedy=remedy)


async def translate(
    connection: Connection, what: str, error: MCPError
) -> tuple[Reason, UpstreamError]:
    """Return why the failed request may be repeated, and its error for the caller."""
    if is_lost(error):
        return "", await _lost(connection, what, sent=error.data is not NEVER_SENT)
    failure = call_error(connection.spec, what, error)
    refusal, _ = refusal_in(error)
    if refusal is not None and not refusal.status:
        # The server may work again at the next request, without this session.
        connection.retire(failure.host_detail)
    elif await connection.has_lost_session(error, refusal):
        if refusal is None or refusal.status != 404:
            return "session lost", failure
        text = "It rejected its session (HTTP 404) twice."
        return "session unknown", lost_error(connection.spec.name, text)
    if refusal is not None and refusal.status in UNAUTHORIZED:
        return "", unauthorized_error(connection.spec, refusal)
    unseen = error.code == types.HEADER_MISMATCH and connection.direct is None
    return "headers" if unseen else "", failure


async def _lost(connection: Connection, what: str, *, sent: bool) -> UpstreamError:
    # The caller may get the error before the owner task, and may call again at once.
    connection.stop()
    if not connection.endpoint.pid:
        # The owner task sets `ended` in its next step, unless closing waits for the server.
        with anyio.move_on_after(0.5):
            await connection.ended.wait()
    end_report = connection.end_report or connection.endpoint.end_report()
    cause = connection.endpoint.cause_of_end
    return lost_error(connection.spec.name, end_report, sent=sent, what=what, cause=cause)


def _caller_time() -> float:
    caller = current_caller()
    return current_time() if caller is None else caller.clock.now()


async def _await_task(
    connection: Connection, call: PendingRequest, begun: float, answer: dict[str, Json]
) -> dict[str, Json]:
    """Return the result of a call, after waiting if the response is a task."""
    extended = answer.get("resultType") == "task"
    task = answer if extended else answer.get("task")
    number = task.get("taskId") if isinstance(task, Mapping) else None
    if not isinstance(task, Mapping) or (not extended and "content" in answer):
        return answer
    if not isinstance(number, str) or not 0 < len(number) <= 1024:
        name = connection.spec.name
        msg = f"Server {name!r}, {call.what}: it answered with a task that has no usable id."
        raise ToolCallError(msg, server=name, rpc_code=types.INTERNAL_ERROR)
    about: dict[str, Json] = {"taskId": number}
    ask = partial(_ask_about_task, connection, call, begun)
    try:
        if not extended:
            return await ask("tasks/result", about)
        return await _poll(connection, call.what, dict(task), about, ask)
    except (anyio.get_cancelled_exc_class(), CallTimeoutError, CannotAskError) as error:
        if isinstance(error, UpstreamError):
            error.doubtful = True
        with anyio.move_on_after(2.0, shield=True):
            # The task or the server may have ended meanwhile.
            with suppress(Exception):
                await ask("tasks/cancel", about)
        raise
    except UpstreamError as error:
        # Unless the tool itself failed, its effect is unknown.
        code = error.rpc_code if isinstance(error, ToolCallError) else LAST_RESERVED
        error.doubtful = error.doubtful or not (
            code == types.INTERNAL_ERROR or code > LAST_RESERVED
        )
        raise


async def _poll(
    connection: Connection,
    what: str,
    task: Mapping[str, Json],
    about: dict[str, Json],
    ask: Callable[[TaskMethod, dict[str, Json]], Awaitable[dict[str, Json]]],
) -> dict[str, Json]:
    server = connection.spec.name
    answered: set[str] = set()
    pause = 0.1
    while True:
        status = task.get("status")
        if status == "completed" and isinstance(task.get("result"), dict):
            result: dict[str, Json] = task["result"]
            return result
        if status not in ("working", "input_required"):
            raise _failure(server, what, task)
        wanted = as_mapping(task.get("inputRequests") if status == "input_required" else None)
        if new := {key: wanted[key] for key in wanted if key not in answered}:
            answers = await answer_input_requests(server, what, new, connection.roots)
            answered.update(new)
            await ask("tasks/update", {**about, "inputResponses": answers})
        given = task.get("pollIntervalMs")
        # False for NaN and for negative numbers.
        if isinstance(given, int | float) and given > 0:
            # Bounded before dividing: an integer may be too large for a float.
            pause = min(max(given, 50), 5_000) / 1000
        await anyio.sleep(pause)
        task = await ask("tasks/get", about)


def _failure(server: str, what: str, task: Mapping[str, Json]) -> ToolCallError:
    found = as_mapping(task.get("error"))
    reason = found.get("message") or task.get("statusMessage") or "it does not say why"
    status = f"{task.get('status')!s:.40}"
    msg = f"Server {server!r}, {what}: its task is {status!r}: {reason!s:.2000}"
    code = found.get("code")
    return ToolCallError(
        msg,
        server=server,
        rpc_code=code if isinstance(code, int) else types.INTERNAL_ERROR,
        data=found.get("data"),
    )
