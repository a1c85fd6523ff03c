"""Requests to one server over a connection that is there: sent, bounded in time, answered.

Owns what may be sent, how long an answer may take, and what a caller is told when there is none.
Which connection is used, and when one is made, is `session.py`'s.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import anyio
from mcp import MCPError
from mcp.types import (
    LOG_LEVEL_META_KEY,
    CallToolRequest,
    CompleteRequest,
    GetPromptRequest,
    ListPromptsRequest,
    ListResourcesRequest,
    ListResourceTemplatesRequest,
    PaginatedRequestParams,
    ReadResourceRequest,
)
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from bridge.errors import CallTimeoutError, MessageTooLargeError, ToolCallError
from bridge.model import Json, ServerSpec, Tool
from bridge.offload import offload
from bridge.upstream import task_calls
from bridge.upstream.asking import current_caller, progress_of, time_limit
from bridge.upstream.direct import NEVER_SENT, Direct
from bridge.upstream.failure import LIST_OF, call_error, is_lost, is_unknown_session, lost_error
from bridge.upstream.handshake import raw_answers
from bridge.upstream.link import Link
from bridge.upstream.listing import (
    LISTS,
    Kind,
    named,
    parse_offers,
    parse_tools,
    read_all_pages,
    seconds_fresh,
)

logger = logging.getLogger(__name__)

SURELY_SHALLOW = 100
"""So few objects and lists cannot be nested too deeply, whatever they hold."""

LOST_DETAIL_SECONDS = 0.5
"""How long a failed call waits to learn why its connection ended; the reason arrives with the
owner task's next step, except where closing has to wait for a server."""

# What comes from JSON has no circles, and to look for them is half of the work.
_COMPACT = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), check_circular=False
)

_ANYTHING: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


Method = (
    Literal["tools/call", "tools/list", "resources/read", "prompts/get", "completion/complete"]
    | task_calls.Method
)

_REQUESTS: Mapping[Method, Any] = {
    "tools/call": CallToolRequest,
    "resources/read": ReadResourceRequest,
    "prompts/get": GetPromptRequest,
    "completion/complete": CompleteRequest,
    **dict.fromkeys(get_args(task_calls.Method), task_calls.TaskRequest),
}

_KINDS: Mapping[Method, Kind] = {"resources/read": "resources", "prompts/get": "prompts"}

_LIST_REQUESTS: Mapping[Kind, Any] = {
    "resources": ListResourcesRequest,
    "templates": ListResourceTemplatesRequest,
    "prompts": ListPromptsRequest,
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a tool, or a request for a resource or a prompt.

    Attributes:
        tool: Its name, or what else tells which one it is.
        arguments: The tool's; of the others all parameters.
        text: The arguments as JSON.
        task: The tool has to be run as a task.
        answers, state: What a server gets that asked something before it answers; see
            `asking.answered`.
    """

    tool: str
    arguments: Mapping[str, Json]
    text: bytes
    what: str
    seconds: float
    method: Method = "tools/call"
    task: bool = False
    answers: Mapping[str, Json] | None = None
    state: str | None = None


class ExpiredError(Exception):
    """The server has forgotten the session, and so cannot have acted on the request."""


class Requests:
    """Makes one server's requests. From any task; cancelled at any time."""

    def __init__(self, spec: ServerSpec, *, call_timeout: float, max_message_bytes: int) -> None:
        self._spec = spec
        self._call_timeout = spec.call_timeout or call_timeout
        self._max_bytes = max_message_bytes

    def prepared(self, tool: str, arguments: Mapping[str, Json], timeout: float | None) -> Call:
        """Return a call that can be sent.

        Raises:
            UpstreamError: Its arguments cannot.
        """
        what = f"tool {tool!r}"
        return Call(
            tool=tool,
            arguments=arguments,
            text=self._checked(what, arguments),
            what=what,
            seconds=self._call_timeout if timeout is None else timeout,
        )

    def prepared_for(
        self, method: Method, what: str, subject: str, params: Mapping[str, Json]
    ) -> Call:
        """Return a request for something else than a tool's work that can be sent.

        Args:
            what: The request in an error, as in "resource 'x'".
            subject: What tells which one it is.

        Raises:
            UpstreamError: Its parameters cannot.
        """
        return Call(
            method=method,
            tool=subject,
            arguments=params,
            text=self._checked(what, params),
            what=what,
            seconds=self._call_timeout,
        )

    async def call(self, link: Link, call: Call) -> dict[str, Json]:
        """Call a tool, or make a request, and return the result as the server sent it.

        Raises:
            UpstreamError: No result came.
            ExpiredError: The call can be made again over another connection.
        """
        kind = _KINDS.get(call.method)
        if kind is not None and not offers(link, kind):
            msg = f"Server {self._spec.name!r} offers no {LISTS[kind].words}, only tools."
            raise ToolCallError(msg, server=self._spec.name, rpc_code=METHOD_NOT_FOUND)
        if call.method == "completion/complete" and not _has(link, "completions"):
            msg = f"Server {self._spec.name!r} completes no arguments."
            raise ToolCallError(msg, server=self._spec.name, rpc_code=METHOD_NOT_FOUND)
        if call.method != "tools/call":
            return await self._send(link, call)
        if _runs_tasks(link):
            if link.tasked is None:
                await self.list_tools(link)
            call = replace(call, task=call.tool in (link.tasked or ()))
        begun = _now()

        async def ask(method: task_calls.Method, params: dict[str, Json]) -> dict[str, Json]:
            text = self._checked(call.what, params)
            left = max(0.0, begun + call.seconds - _now())
            if method == "tasks/cancel":
                left = task_calls.CANCEL_SECONDS
            elif not left:
                raise self._late(link, call.what, call.seconds)
            about = replace(call, method=method, arguments=params, text=text, seconds=left)
            try:
                return await self._send(link, replace(about, answers=None, state=None))
            except ExpiredError:
                # The tool was called: whoever sees this error must not call it again.
                raise lost_error(self._spec.name, "It forgot its session.", sent=True) from None

        answer = await self._send(link, call)
        name = self._spec.name
        return await task_calls.finished(name, call.what, answer, ask, roots=link.roots)

    async def await_update(self, link: Link, uri: str, seconds: float | None) -> None:
        """Return once the server says that a resource has changed, or its connection has ended.

        Raises:
            UpstreamError: It tells nobody, or did not within `seconds`.
        """
        if not _has(link, "resources", "subscribe"):
            msg = f"Server {self._spec.name!r} does not say when a resource changes."
            raise ToolCallError(msg, server=self._spec.name, rpc_code=METHOD_NOT_FOUND)
        what, seconds = f"resource {uri!r:.300}", self._call_timeout if seconds is None else seconds
        client = link.client
        assert client is not None
        try:
            with time_limit(seconds) as limit:
                await link.updates.wait(client, uri)
        except MCPError as error:
            raise await self._explained(link, what, error) from None
        if limit.cancelled_caught:
            msg = f"Server {self._spec.name!r}: {what} did not change within {seconds:g} s."
            raise CallTimeoutError(msg, server=self._spec.name, doubtful=False)

    async def _send(self, link: Link, call: Call) -> dict[str, Json]:
        if link.direct is not None:
            return await self._call_directly(link, link.direct, call)
        caller = current_caller()
        # In the older protocol a connection has a level, and not each call.
        level = caller.log_level if caller is not None and link.modern else ""
        request = _call_request(call, level)
        progress = progress_of(caller, self._spec.name, call.tool)

        async def send(client: Any) -> None:
            await client.send_request(request, _ANYTHING, progress_callback=progress)

        try:
            return await self._ask(link, call.what, call.seconds, send)
        except ToolCallError as error:
            if error.rpc_code != HEADER_MISMATCH or call.method != "tools/call":
                raise
        # The server refused the request unseen: some arguments have to be repeated in headers,
        # which its list of tools says.
        await self.list_tools(link)
        return await self._ask(link, call.what, call.seconds, send)

    async def _call_directly(self, link: Link, direct: Direct, call: Call) -> dict[str, Json]:
        params = call.text
        if call.method == "tools/call":
            params = b'{"name":%b,"arguments":%b}' % (json.dumps(call.tool).encode(), call.text)
        if call.method == "tools/call" and call.task:
            params = b'%b,"task":%b}' % (params[:-1], _COMPACT.encode(_task(call)).encode())
        if call.answers is not None or call.state is not None:
            given = {"inputResponses": call.answers, "requestState": call.state}
            more = {name: value for name, value in given.items() if value is not None}
            params = b"%b,%b" % (params[:-1], _COMPACT.encode(more).encode()[1:])
        try:
            return await direct.request(call.method, params, call.seconds, label=call.tool)
        except anyio.get_cancelled_exc_class():
            # A run that ends before the call's own timeout knows as little of the server.
            link.doubt()
            raise
        except TimeoutError:
            raise self._late(link, call.what, call.seconds) from None
        except MCPError as error:
            raise await self._explained(link, call.what, error) from None

    async def list_tools(self, link: Link) -> tuple[tuple[Tool, ...], float]:
        """Return the server's tools, and for how many seconds the list counts.

        Raises:
            UpstreamError: It did not give them.
        """
        deadline = anyio.current_time() + self._call_timeout
        fresh = math.inf

        async def fetch(cursor: str | None) -> Mapping[str, Json]:
            nonlocal fresh
            page = await fetch_page(cursor)
            if link.modern:
                fresh = min(fresh, seconds_fresh(page, announced=announces(link, "tools")))
            return page

        async def fetch_page(cursor: str | None) -> dict[str, Json]:
            kept: set[str] = set()

            async def send(client: Any) -> None:
                params = PaginatedRequestParams(cursor=cursor) if cursor else None
                result = await client.list_tools(params=params)
                kept.update(tool.name for tool in result.tools)

            seconds = max(0.0, deadline - anyio.current_time())
            what = f"{LIST_OF}tools"
            # Of the newer protocol, the SDK leaves out the tools that it forbids to use.
            if link.direct is not None and not link.modern:
                params = _COMPACT.encode({"cursor": cursor} if cursor else {}).encode()
                listing = Call(
                    tool="",
                    arguments={},
                    text=params,
                    what=what,
                    seconds=seconds,
                    method="tools/list",
                )
                return await self._call_directly(link, link.direct, listing)
            page = await self._ask(link, what, seconds, send)
            if kept and isinstance(page.get("tools"), list):
                page["tools"] = [e for e in page["tools"] if named(e) in kept]
            return page

        try:
            entries = await read_all_pages(self._spec.name, fetch)
        except ToolCallError as error:
            if error.rpc_code != METHOD_NOT_FOUND:
                raise
            return (), math.inf
        except CallTimeoutError:
            # A list costs a server nothing: one that does not give it is stuck, and has to restart.
            link.retire("It did not answer.")
            raise
        link.tasked = task_calls.demanding(entries)
        return await offload(entries, partial(parse_tools, self._spec.name, entries)), fresh

    async def list_offers(self, link: Link, kind: Kind) -> tuple[dict[str, Json], ...]:
        """Return the server's resources, resource templates or prompts; none if it has no such.

        Raises:
            UpstreamError: It did not give them.
        """
        if not offers(link, kind):
            return ()
        deadline = anyio.current_time() + self._call_timeout
        what = f"{LIST_OF}{LISTS[kind].words}"

        async def fetch(cursor: str | None) -> Mapping[str, Json]:
            params = PaginatedRequestParams(cursor=cursor) if cursor else None
            request = _LIST_REQUESTS[kind](params=params)

            async def send(client: Any) -> None:
                await client.send_request(request, _ANYTHING)

            # Unlike the list of tools it may cost a server something: to be slow is no fault.
            seconds = max(0.0, deadline - anyio.current_time())
            return await self._ask(link, what, seconds, send)

        try:
            entries = await read_all_pages(self._spec.name, fetch, LISTS[kind].key)
        except ToolCallError as error:
            if error.rpc_code != METHOD_NOT_FOUND:
                raise
            return ()
        return await offload(entries, partial(parse_offers, self._spec.name, kind, entries))

    async def _ask(
        self,
        link: Link,
        what: str,
        seconds: float,
        send: Callable[[Any], Awaitable[object]],
    ) -> dict[str, Json]:
        """Send one request and return its answer unparsed."""
        answers: list[dict[str, Json]] = []
        token = raw_answers.set(answers)
        try:
            with time_limit(seconds):
                await send(link.client)
        except anyio.get_cancelled_exc_class():
            # A run that ends before the call's own timeout knows as little of the server.
            link.doubt()
            raise
        except ValidationError as error:
            logger.debug("server %r: %s has an unusual shape: %s", self._spec.name, what, error)
        except MCPError as error:
            raise await self._explained(link, what, error) from None
        except (ValueError, RuntimeError) as error:
            # Which of the two it was, and whether before or after sending, is the SDK's affair.
            raise self._unsendable(what, error, doubtful=True) from error
        finally:
            raw_answers.reset(token)
        if answers:
            return answers[-1]
        raise self._late(link, what, seconds)

    def _late(self, link: Link, what: str, seconds: float) -> CallTimeoutError:
        link.doubt()
        msg = (
            f"Server {self._spec.name!r} did not answer {what} within {seconds:g} s; "
            "it was told to stop."
        )
        return CallTimeoutError(
            msg,
            server=self._spec.name,
            remedy="Give the call more time, or ask for less.",
        )

    async def _explained(self, link: Link, what: str, error: MCPError) -> Exception:
        if is_lost(error):
            return await self._lost(link, sent=error.data is not NEVER_SENT)
        if link.endpoint.expired and is_unknown_session(error):
            link.stop()
            return ExpiredError()
        return call_error(self._spec, what, error, refusal=link.endpoint.refusal)

    async def _lost(self, link: Link, *, sent: bool) -> Exception:
        # The caller may learn of it before the owner task does, and may call again at once.
        link.abandon()
        if not link.endpoint.pid:
            with anyio.move_on_after(LOST_DETAIL_SECONDS):
                await link.ended.wait()
        account = link.account or link.endpoint.account()
        return lost_error(self._spec.name, account, sent=sent)

    def _checked(self, what: str, arguments: Mapping[str, Json]) -> bytes:
        """Return the arguments as JSON.

        What cannot be sent is refused here: it would break the connection's writer, and so every
        call.
        """
        try:
            text = _COMPACT.encode(arguments).encode()
            if text.count(b"{") + text.count(b"[") > SURELY_SHALLOW:
                # Servers read no deeper than the SDK's writer goes, which says so.
                to_json({"params": {"arguments": arguments}})
        except (ValueError, TypeError, RecursionError) as error:
            raise self._unsendable(what, error) from None
        if len(text) > self._max_bytes:
            msg = (
                f"Server {self._spec.name!r}, {what}: the arguments have {len(text)} bytes; "
                f"the limit is {self._max_bytes}."
            )
            raise MessageTooLargeError(
                msg,
                server=self._spec.name,
                remedy="Send less at a time.",
                doubtful=False,
            )
        return text

    def _unsendable(self, what: str, error: Exception, *, doubtful: bool = False) -> ToolCallError:
        return ToolCallError(
            f"Server {self._spec.name!r}, {what}: the arguments cannot be sent as JSON: {error}",
            server=self._spec.name,
            rpc_code=INVALID_PARAMS,
            doubtful=doubtful,
        )


def offers(link: Link, kind: Kind) -> bool:
    """Whether the server says that it has this kind of thing; others are not asked for it.

    Some answer nothing at all to what they do not know.
    """
    capabilities = link.client.server_capabilities if link.client else None
    if capabilities is None:
        return True
    return (capabilities.prompts if kind == "prompts" else capabilities.resources) is not None


def announces(link: Link, kind: Kind | Literal["tools"]) -> bool:
    """Whether the server says when this list changes."""
    capabilities = link.client.server_capabilities if link.client else None
    if capabilities is None:
        return False
    found = getattr(capabilities, "resources" if kind == "templates" else kind)
    return found is not None and found.list_changed is True


def _has(link: Link, *path: str) -> bool:
    """Whether the server declares a capability."""
    found: Any = link.client.server_capabilities if link.client else None
    for name in path:
        found = getattr(found, name, None)
    return found is not None and found is not False


def _runs_tasks(link: Link) -> bool:
    """Whether some of the server's tools may have to be called as tasks, as in 2025-11-25."""
    return _has(link, "tasks", "requests", "tools")


def _task(call: Call) -> dict[str, Json]:
    """Return how long a server shall keep a task: as long as its result is waited for."""
    return {"ttl": math.ceil(call.seconds * 1000)}


def _now() -> float:
    """Return the time by which the caller's calls are limited."""
    caller = current_caller()
    return anyio.current_time() if caller is None else caller.clock.now()


def _call_request(call: Call, log_level: str) -> Any:
    """Return the SDK's form of a call.

    Args:
        log_level: Which of its messages are wanted; servers of the newer era send none unasked.
    """
    params: dict[str, Any] = dict(call.arguments)
    if call.method == "tools/call":
        params = {"name": call.tool, "arguments": params}
        if call.task:
            params["task"] = _task(call)
    if call.answers is not None:
        params["inputResponses"] = dict(call.answers)
    if call.state is not None:
        params["requestState"] = call.state
    if log_level:
        params["_meta"] = {LOG_LEVEL_META_KEY: log_level}
    return _REQUESTS[call.method].model_validate(
        {"method": call.method, "params": params}, by_name=False
    )
