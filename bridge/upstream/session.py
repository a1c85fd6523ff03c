"""One server over time: connections that come and go, and requests to whichever there is.

Owns when a connection is made, what a caller gets when it breaks, the cached list of tools and the
server's state as shown to users. The connection itself is `link.py`'s, and what goes
over it `requests.py`'s.

State changes happen synchronously and I/O follows: between looking at the current connection and
counting oneself among its users no other task runs, so that concurrent first requests start a
server once, and none is given a connection that is being closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY

from bridge.errors import ServerLostError, ToolCallError
from bridge.model import Json, ServerSpec, Tool
from bridge.upstream.failure import lost_error
from bridge.upstream.link import Link
from bridge.upstream.requests import Call, ExpiredError, Requests

State = Literal["idle", "starting", "ready", "failed", "closed"]


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
        self._requests = Requests(
            spec, call_timeout=call_timeout, max_message_bytes=max_message_bytes
        )
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
            tools = await self._requests.list_tools(link)
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
        call = self._requests.prepared(tool, arguments, timeout)
        try:
            result = await self._call(call)
        except ExpiredError:
            try:
                result = await self._call(call)
            except ExpiredError:
                raise lost_error(self.spec.name, "It keeps forgetting its session.") from None
        if result.get("resultType") == "input_required":
            msg = (
                f"Server {self.spec.name!r}, {call.what}: it wants input from the user before it "
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

    async def _call(self, call: Call) -> dict[str, Json]:
        async with self._use() as link:
            return await self._requests.call(link, call)


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
