"""One server over time: connections that come and go, and requests to whichever there is.

Owns when a connection is made, what a caller gets when it breaks, the cached list of tools and the
server's state as shown to users. The connection itself is `link.py`'s.

State changes happen synchronously and I/O follows: between looking at the current connection and
counting oneself among its users no other task runs, so that concurrent first requests start a
server once, and none is given a connection that is being closed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from mcp import MCPError
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    PaginatedRequestParams,
)
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from bridge.errors import CallTimeoutError, MessageTooLargeError, ServerLostError, ToolCallError
from bridge.model import Json, ServerSpec, Tool
from bridge.upstream.failure import call_error, is_lost, is_unknown_session, lost_error
from bridge.upstream.handshake import raw_answers
from bridge.upstream.link import Link
from bridge.upstream.listing import parse_tools, read_all_pages

logger = logging.getLogger(__name__)

SURELY_SHALLOW = 100
"""So few objects and lists cannot be nested too deeply, whatever they hold."""

LOST_DETAIL_SECONDS = 0.5
"""How long a failed call waits to learn why its connection ended; the reason arrives with the
owner task's next step, except where closing has to wait for a server."""

State = Literal["idle", "starting", "ready", "failed", "closed"]

_COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))

_ANYTHING: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """A server as `servers` shows it.

    Attributes:
        state: "idle" before the first use and after an idle close; "failed" after a start that
            failed or a connection that broke, until the next request; "closed" for good.
        error: Why it failed.
        pid: Its process, for stdio.
        tool_count: None until its tools have been listed.
        server_info: The name and version that it gives itself, and the protocol in use.
        restarts: Connections made after the first.
    """

    server: str
    state: State
    error: str = ""
    pid: int | None = None
    tool_count: int | None = None
    server_info: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call of a tool. `text` is its arguments as JSON."""

    tool: str
    arguments: Mapping[str, Json]
    text: bytes
    what: str
    seconds: float


class _ExpiredError(Exception):
    """The server has forgotten the session, and so cannot have acted on the request."""


class Session:
    """One server. Requests may come from any task and be cancelled at any time.

    Args:
        connect: Makes a connection and starts its owner task; synchronous.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        connect: Callable[[Session, anyio.Event | None], Link],
        call_timeout: float,
        max_message_bytes: int,
    ) -> None:
        self.spec = spec
        self._connect = connect
        self._call_timeout = spec.call_timeout or call_timeout
        self._max_bytes = max_message_bytes
        self._link: Link | None = None
        self._closed = False
        self._connections = 0
        self._tools: tuple[Tool, ...] | None = None
        self._changes = 0

    def state(self) -> ServerState:
        """Describe it as it is now."""
        link = self._link
        state: State = "idle"
        error = ""
        if self._closed:
            state = "closed"
        elif link is None or link.idle:
            pass
        elif not link.ready.is_set():
            state = "starting"
        elif link.usable:
            state = "ready"
        else:
            state = "failed"
            account = link.account or link.endpoint.account()
            error = str(link.failure) if link.failure else account
        live = link is not None and not link.ended.is_set()
        return ServerState(
            server=self.spec.name,
            state=state,
            error=error,
            pid=link.endpoint.pid if link and live else None,
            tool_count=None if self._tools is None else len(self._tools),
            server_info=_server_info(link) if link and live else {},
            restarts=max(0, self._connections - 1),
        )

    def links(self) -> list[Link]:
        """Return the connection that has not ended yet, if any."""
        return [self._link] if self._link and not self._link.ended.is_set() else []

    def close(self, *, drain: bool) -> None:
        """Make no more connections, and have the current one closed.

        Args:
            drain: Let the requests under way end first.
        """
        self._closed = True
        if self._link is not None:
            if drain:
                self._link.retire()
            else:
                self._link.stop()

    def forget_tools(self) -> None:
        """Drop the cached list of tools."""
        self._changes += 1
        self._tools = None

    async def start(self) -> None:
        """Have it ready.

        Raises:
            ServerStartError: It cannot be started or reached.
        """
        async with self._use():
            pass

    async def tools(self) -> tuple[Tool, ...]:
        """Return its tools, from the cache while the server has announced no change.

        Raises:
            UpstreamError: It cannot be started, or did not answer.
        """
        if self._tools is not None and not self._closed:
            return self._tools
        try:
            return await self._listed()
        except ServerLostError:
            # It may have died before, unnoticed until now. Asking again cannot do anything twice.
            return await self._listed()

    async def _listed(self) -> tuple[Tool, ...]:
        async with self._use() as link, link.listing:
            if self._tools is not None:
                return self._tools
            if not link.usable and not self._closed:
                # The one before us had no answer; asking here again would have none either.
                raise lost_error(self.spec.name, "")
            before = self._changes
            tools = await self._list_tools(link)
            if link.cacheable and link.usable and before == self._changes:
                self._tools = tools
            return tools

    async def call_tool(
        self, tool: str, arguments: Mapping[str, Json], *, timeout: float | None
    ) -> dict[str, Json]:
        """Call a tool and return the result as the server sent it.

        Raises:
            UpstreamError: No result came. A result that reports an error is a result.
        """
        seconds = self._call_timeout if timeout is None else timeout
        what = f"tool {tool!r}"
        text = self._checked(what, arguments)
        call = _Call(tool=tool, arguments=arguments, text=text, what=what, seconds=seconds)
        try:
            result = await self._call(call)
        except _ExpiredError:
            try:
                result = await self._call(call)
            except _ExpiredError:
                raise lost_error(self.spec.name, "It keeps forgetting its session.") from None
        if result.get("resultType") == "input_required":
            msg = (
                f"Server {self.spec.name!r}, {what}: it wants input from the user before it "
                "answers, which this bridge does not offer."
            )
            raise ToolCallError(
                msg,
                server=self.spec.name,
                rpc_code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            )
        if not isinstance(result.get("content"), list):
            result["content"] = []
        return result

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Link]:
        link = self._current()
        with link.use():
            if not link.ready.is_set():
                await link.ready.wait()
            if link.failure is not None:
                # One failure is shared by all who waited for it; each raises it afresh.
                raise link.failure.with_traceback(None)
            yield link

    def _current(self) -> Link:
        link = self._link
        if self._closed:
            msg = f"Server {self.spec.name!r} is closed."
            raise ServerLostError(
                msg,
                server=self.spec.name,
                remedy="Its configuration was changed or removed, or the bridge is ending.",
            )
        if link is None or not link.usable:
            if link is None or not link.idle:
                self.forget_tools()
            self._connections += 1
            previous = link.ended if link and not link.ended.is_set() else None
            self._link = link = self._connect(self, previous)
        return link

    async def _call(self, call: _Call) -> dict[str, Json]:
        what, seconds = call.what, call.seconds
        async with self._use() as link:
            direct = link.direct
            if direct is not None:
                params = b'{"name":%b,"arguments":%b}' % (_quoted(call.tool), call.text)
                return await self._ask(
                    link, what, seconds, lambda _: direct.request("tools/call", params)
                )
            request = CallToolRequest(
                params=CallToolRequestParams(name=call.tool, arguments=dict(call.arguments))
            )
            try:
                return await self._ask(
                    link, what, seconds, lambda c: c.send_request(request, _ANYTHING)
                )
            except ToolCallError as error:
                if error.rpc_code != HEADER_MISMATCH:
                    raise
            # The server refused the request unseen: some arguments have to be repeated in headers,
            # which its list of tools says.
            await self._list_tools(link)
            return await self._ask(
                link, what, seconds, lambda c: c.send_request(request, _ANYTHING)
            )

    async def _list_tools(self, link: Link) -> tuple[Tool, ...]:
        deadline = anyio.current_time() + self._call_timeout

        async def fetch(cursor: str | None) -> Mapping[str, Json]:
            kept: list[str] = []

            async def send(client: Any) -> None:
                params = PaginatedRequestParams(cursor=cursor) if cursor else None
                result = await client.list_tools(params=params)
                kept.extend(tool.name for tool in result.tools)

            seconds = max(0.0, deadline - anyio.current_time())
            page = await self._ask(link, "the list of its tools", seconds, send)
            # The SDK leaves out what the newer protocol forbids to use.
            if kept and isinstance(page.get("tools"), list):
                page["tools"] = [e for e in page["tools"] if e.get("name") in kept]
            return page

        try:
            entries = await read_all_pages(self.spec.name, fetch)
        except ToolCallError as error:
            if error.rpc_code != METHOD_NOT_FOUND:
                raise
            return ()
        except CallTimeoutError:
            # A list costs a server nothing: one that does not give it is stuck, and has to restart.
            link.retire("It did not answer.")
            raise
        return parse_tools(self.spec.name, entries)

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
            with anyio.move_on_after(seconds):
                await send(link.client)
        except anyio.get_cancelled_exc_class():
            # A run that ends before the call's own timeout knows as little of the server.
            link.doubt()
            raise
        except ValidationError as error:
            logger.debug("server %r: %s has an unusual shape: %s", self.spec.name, what, error)
        except MCPError as error:
            if is_lost(error):
                raise await self._lost(link) from None
            if link.endpoint.expired and is_unknown_session(error):
                link.stop()
                raise _ExpiredError from None
            raise call_error(self.spec, what, error, refusal=link.endpoint.refusal) from None
        except (ValueError, RuntimeError) as error:
            raise self._unsendable(what, error) from error
        finally:
            raw_answers.reset(token)
        if answers:
            return answers[-1]
        link.doubt()
        msg = (
            f"Server {self.spec.name!r} did not answer {what} within {seconds:g} s; "
            "it was told to stop."
        )
        raise CallTimeoutError(
            msg,
            server=self.spec.name,
            remedy="Give the call more time, or ask for less.",
        )

    async def _lost(self, link: Link) -> Exception:
        # The caller may learn of it before the owner task does, and may call again at once.
        link.abandon()
        if not link.endpoint.pid:
            with anyio.move_on_after(LOST_DETAIL_SECONDS):
                await link.ended.wait()
        account = link.account or link.endpoint.account()
        return lost_error(self.spec.name, account)

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
                f"Server {self.spec.name!r}, {what}: the arguments have {len(text)} bytes; "
                f"the limit is {self._max_bytes}."
            )
            raise MessageTooLargeError(
                msg,
                server=self.spec.name,
                remedy="Send less at a time.",
            )
        return text

    def _unsendable(self, what: str, error: Exception) -> ToolCallError:
        return ToolCallError(
            f"Server {self.spec.name!r}, {what}: the arguments cannot be sent as JSON: {error}",
            server=self.spec.name,
            rpc_code=INVALID_PARAMS,
        )


def _quoted(name: str) -> bytes:
    return json.dumps(name).encode()


def _server_info(link: Link) -> dict[str, str]:
    client = link.client
    if client is None:
        return {}
    info = client.server_info
    facts = {
        "name": info.name if info else "",
        "version": info.version if info else "",
        "protocol": client.protocol_version or "",
    }
    return {key: value for key, value in facts.items() if value}
