"""One server over time: connections that come and go, and requests to whichever there is.

Owns when a connection is made, what a caller gets when it breaks, the cached list of tools and the
server's state as shown to users. The connection itself is `link.py`'s, and what goes
over it `requests.py`'s.

State changes happen synchronously and I/O follows: between looking at the current connection and
counting oneself among its users no other task runs, so that concurrent first requests start a
server once, and none is given a connection that is being closed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import anyio
from mcp import ClientSession

from bridge.errors import (
    CallDeniedError,
    LoginRequiredError,
    ServerLostError,
    ToolCallError,
    UpstreamError,
)
from bridge.model import Json, ServerSpec, Tool
from bridge.upstream.asking import answered, visited
from bridge.upstream.failure import lost_error
from bridge.upstream.link import Link
from bridge.upstream.listing import LIST_AGAIN_SECONDS, Kind, correction
from bridge.upstream.requests import Call, ExpiredError, Requests, announces

MAX_CHARS = 300
"""Kept of it, since it is repeated wherever servers are listed."""

_MAX_READ = 4_000
"""Looked at of a server's instructions, which may be a book."""


def introduction(client: ClientSession) -> str:
    """Return a line on what the server is for; empty if it says nothing of that.

    From its description, else its title, else the first paragraph of its instructions, which are
    written for a model that has the server's tools at hand.
    """
    info = client.server_info
    told = (
        info.description if info else None,
        info.title if info and _letters(info.title) != _letters(info.name) else None,
        _first_paragraph(client.instructions or ""),
    )
    return next((line for text in told if text and (line := _line(text))), "")


def _letters(text: str | None) -> str:
    """Return what a name says, however it is written: a title that is no more says nothing."""
    return "".join(filter(str.isalnum, (text or "")[:MAX_CHARS].casefold()))


def _first_paragraph(text: str) -> str:
    """Return the first paragraph that is not a heading, a rule or a fence."""
    for paragraph in text[:_MAX_READ].split("\n\n"):
        lines = (line for line in paragraph.splitlines() if line[:1] not in ("#", "=", "-", "`"))
        if found := " ".join(lines).strip():
            return found
    return ""


def _line(text: str) -> str:
    return " ".join(text[:_MAX_READ].split())[:MAX_CHARS]


Answer = TypeVar("Answer")

State = Literal["idle", "starting", "ready", "failed", "login required", "closed"]


_FORGETFUL = "It keeps forgetting its session."

_NUMBERS = itertools.count(1)
"""Of connections, over all sessions: a server that is redefined gets another session."""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """A server as `servers` shows it.

    Attributes:
        state: "idle" before the first use and after an idle close; "failed" after a start that
            failed or a connection that broke, until the next request, and "login required" if that
            is why it did; "closed" for good.
        error: Why it failed.
        pid: Its process, for stdio.
        tool_count: None until its tools have been listed.
        server_info: The name and version that it gives itself, the protocol in use, and what it
            says that it is "about".
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
        permit: Raises what there is to say if no connection may be made.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        connect: Callable[[Session, anyio.Event | None], Link],
        permit: Callable[[ServerSpec], Awaitable[None]],
        call_timeout: float,
        max_message_bytes: int,
        roots: Sequence[Path] = (),
    ) -> None:
        self.spec = spec
        self._roots = roots
        self._connect = connect
        self._permit = permit
        self._permitting = anyio.Lock()
        self._requests = Requests(
            spec, call_timeout=call_timeout, max_message_bytes=max_message_bytes
        )
        self._link: Link | None = None
        self._closed = False
        self._connections = 0
        self._number = 0
        self._listed_by = 0
        self._listed_at = -math.inf
        self._fresh_seconds = math.inf
        self._tools: tuple[Tool, ...] | None = None
        self._changes = 0
        self._offers: dict[Kind, tuple[dict[str, Json], ...]] = {}
        self._offer_changes = 0

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
            if isinstance(link.failure, LoginRequiredError):
                state = "login required"
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

    def forget_offers(self, kind: Literal["resources", "prompts"]) -> None:
        """Drop the cached lists of resources and their templates, or of prompts."""
        self._offer_changes += 1
        self._offers.pop(kind, None)
        if kind == "resources":
            self._offers.pop("templates", None)

    @property
    def listed(self) -> bool:
        """Whether its present connection was ever asked for the list of tools."""
        return self._link is not None and self._link.listings > 0

    @property
    def moment(self) -> tuple[int, int] | None:
        """What changes with its connection and with each word of changed tools; None without one.

        What it listed at another moment may not be what a call would meet now.
        """
        link = self._link
        return None if link is None or not link.usable else (self._number, self._changes)

    def rest(self) -> None:
        """Close its connection if that served nothing but listing; the next request makes one."""
        if self._link is not None and self._link.rest():
            self.forget_tools()

    async def start(self) -> None:
        """Have it ready.

        Raises:
            ServerStartError: It cannot be started or reached.
        """
        async with self._use():
            pass

    async def tools(self, *, again: bool = False) -> tuple[Tool, ...]:
        """Return its tools, from the cache while the server has announced no change.

        One that was closed as idle is not started for it; once it is up again, it is asked again.

        Args:
            again: Ask it, unless it was asked less than `LIST_AGAIN_SECONDS` ago.

        Raises:
            UpstreamError: It cannot be started, or did not answer.
        """
        kept = self._tools
        if kept is not None and not self._closed and (self.moment is None or self._is_fresh(again)):
            return kept
        return await self._asked(partial(self._listed, again))

    async def offers(self, kind: Kind) -> tuple[dict[str, Json], ...]:
        """Return its resources, resource templates or prompts; none if it has no such.

        They are kept as long as the server says when they change. One that does not is asked each
        time: resources are data, and come and go.

        Raises:
            UpstreamError: It cannot be started, or did not answer.
        """
        kept = self._offers.get(kind)
        if kept is not None and not self._closed:
            return kept
        return await self._asked(lambda: self._offered(kind))

    async def _offered(self, kind: Kind) -> tuple[dict[str, Json], ...]:
        async with self._use() as link:
            before = self._offer_changes
            found = await self._requests.list_offers(link, kind)
            kept = link.cacheable and link.usable and announces(link, kind)
            if kept and before == self._offer_changes:
                self._offers[kind] = found
            return found

    async def _asked(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask for a list, which cannot do anything twice, and ask again if need be."""
        try:
            return await ask()
        except (ServerLostError, ExpiredError):
            # It may have died before, unnoticed until now.
            pass
        try:
            return await ask()
        except ExpiredError:
            raise lost_error(self.spec.name, _FORGETFUL) from None

    async def _listed(self, again: bool) -> tuple[Tool, ...]:
        async with self._use() as link, link.listing:
            link.listings += 1
            if self._tools is not None and self._is_fresh(again):
                return self._tools
            if not link.usable and not self._closed:
                # The one before us had no answer; asking here again would have none either.
                raise lost_error(self.spec.name, "")
            before = self._changes
            found, fresh = await self._requests.list_tools(link)
            tools = tuple(tool for tool in found if self.spec.tools.admits(tool.name))
            if tools == self._tools:
                # Who compares sees at once that nothing is new.
                tools = self._tools
            if link.cacheable and link.usable and before == self._changes:
                self._tools = tools
                self._listed_by = self._number
                self._listed_at, self._fresh_seconds = anyio.current_time(), fresh
            return tools

    def _is_fresh(self, again: bool) -> bool:
        """Whether the list is of the present connection, and recent enough."""
        age = anyio.current_time() - self._listed_at
        return self._listed_by == self._number and age < (
            LIST_AGAIN_SECONDS if again else self._fresh_seconds
        )

    async def call_tool(
        self, tool: str, arguments: Mapping[str, Json], *, timeout: float | None
    ) -> dict[str, Json]:
        """Call a tool and return the result as the server sent it.

        Raises:
            CallDeniedError: The server's configuration leaves this tool out.
            UpstreamError: No result came. A result that reports an error is a result.
        """
        if not self.spec.tools.admits(tool):
            message = (
                f"The tool {tool!r} of server {self.spec.name!r} may not be used: the server's "
                "configuration leaves it out."
            )
            raise CallDeniedError(message, host_detail=f"It is in {self.spec.source.path}.")
        result = await self._answered(self._requests.prepared(tool, arguments, timeout))
        if not isinstance(result.get("content"), list):
            result["content"] = []
        return result

    async def read_resource(self, uri: str) -> dict[str, Json]:
        """Read a resource and return the result as the server sent it.

        Raises:
            UpstreamError: It could not be read.
        """
        what, params = f"resource {uri!r:.300}", {"uri": uri}
        call = self._requests.prepared_for("resources/read", what, uri, params)
        return await self._answered_or_corrected(call, "resources")

    async def watch_resource(self, uri: str, *, timeout: float | None) -> dict[str, Json]:
        """Wait until a resource changes, and read it.

        Raises:
            UpstreamError: The server does not tell, it did not change in time, or it could not be
                read.
        """

        async def wait() -> None:
            async with self._use() as link:
                await self._requests.await_update(link, uri, timeout)

        await self._asked(wait)
        return await self.read_resource(uri)

    async def complete(self, params: Mapping[str, Json]) -> dict[str, Json]:
        """Return what the server proposes for an argument, as the server sent it.

        Args:
            params: MCP's `completion/complete`: ref, argument, context.

        Raises:
            UpstreamError: It proposes nothing, since it cannot or knows of no such argument.
        """
        what = f"completion of {params['argument']['name']!r:.300}"
        call = self._requests.prepared_for("completion/complete", what, "", params)
        return await self._answered(call)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Json]:
        """Get a prompt and return the result as the server sent it.

        Raises:
            UpstreamError: There is none.
        """
        params = {"name": name, "arguments": dict(arguments)}
        call = self._requests.prepared_for("prompts/get", f"prompt {name!r:.300}", name, params)
        return await self._answered_or_corrected(call, "prompts")

    async def _answered_or_corrected(self, call: Call, kind: Kind) -> dict[str, Json]:
        """Return the answer; a refusal names what there is that is called similarly."""
        try:
            return await self._answered(call)
        except ToolCallError as error:
            refusal = error
        try:
            help_text = correction(kind, call.tool, await self.offers(kind))
        except UpstreamError:
            help_text = ""
        msg = f"{refusal.message}. {help_text}" if help_text else refusal.message
        raise ToolCallError(
            msg,
            server=self.spec.name,
            rpc_code=refusal.rpc_code,
            data=refusal.data,
        )

    async def _answered(self, call: Call) -> dict[str, Json]:
        async def again(answers: dict[str, Json] | None, state: str | None) -> dict[str, Json]:
            return await self._call_twice(replace(call, answers=answers, state=state))

        try:
            result = await self._call_twice(call)
        except ToolCallError as refusal:
            if not await visited(self.spec.name, call.what, refusal):
                raise
            result = await self._call_twice(call)
        return await answered(self.spec.name, call.what, result, again, roots=self._roots)

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Link]:
        link = self._current() if self._is_up() else await self._permitted()
        with link.use():
            if not link.ready.is_set():
                await link.ready.wait()
            if link.failure is not None:
                # One failure is shared by all who waited for it; each raises it afresh.
                raise link.failure.with_traceback(None)
            yield link

    def _is_up(self) -> bool:
        return self._closed or (self._link is not None and self._link.usable)

    async def _permitted(self) -> Link:
        """Return a connection that may be made; of those who need it one is asked."""
        async with self._permitting:
            if not self._is_up():
                await self._permit(self.spec)
            return self._current()

    def _current(self) -> Link:
        link = self._link
        if self._closed:
            msg = f"Server {self.spec.name!r} is closed."
            raise ServerLostError(
                msg,
                server=self.spec.name,
                remedy="Its configuration was changed or removed, or the bridge is ending.",
                doubtful=False,
            )
        if link is None or not link.usable:
            if link is None or not link.idle:
                self.forget_tools()
                self.forget_offers("resources")
                self.forget_offers("prompts")
            self._connections += 1
            self._number = next(_NUMBERS)
            previous = link.ended if link and not link.ended.is_set() else None
            self._link = link = self._connect(self, previous)
        return link

    async def _call_twice(self, call: Call) -> dict[str, Json]:
        try:
            return await self._call(call)
        except ExpiredError:
            try:
                return await self._call(call)
            except ExpiredError:
                raise lost_error(self.spec.name, _FORGETFUL) from None

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
        "about": introduction(client),
    }
    return {key: value for key, value in facts.items() if value}
