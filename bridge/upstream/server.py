"""One server across its connections, of which it has at most one at a time.

Owns connecting, repetition of requests (`_AGAIN`), cached lists and the server's state. State
changes synchronously before I/O, so concurrent first requests start a server once, and no request
gets a closing connection.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar, get_args

import anyio
from mcp import ClientSession, MCPError
from mcp.types import ListRootsResult, RootsListChangedNotification
from pydantic import ValidationError

from bridge.errors import (
    BridgeError,
    CallDeniedError,
    CannotAskError,
    LoginRequiredError,
    ToolCallError,
    UpstreamError,
)
from bridge.model import Json, ServerSpec, Tool
from bridge.upstream import requests
from bridge.upstream.client_features import (
    INPUT_REQUIRED,
    complete_url_elicitations,
    current_caller,
    resolve_input,
)
from bridge.upstream.connection import PROBE_SECONDS, Connection, ListName, PoolSettings
from bridge.upstream.failure import LIST_PREFIX, lost_error
from bridge.upstream.listing import LISTS, MIN_CACHE_SECONDS, Kind, suggestion
from bridge.upstream.sharing import Connections, share_key

MAX_CHARS = 300  # Of a server's introduction, which is repeated wherever servers are listed.


def introduction(client: ClientSession) -> str:
    """Return a line on what the server is for; empty if it does not say.

    It is `serverInfo.description`, else `serverInfo.title`, else the first paragraph of
    `instructions`, which address a model with the server's tools.
    """
    info = client.server_info
    texts = [info.description or ""] if info else []
    if info and _letters(info.title) != _letters(info.name):
        texts.append(info.title or "")
    # Without headings, rules and fences.
    plain = re.sub(r"(?m)^[#=`-].*", "", (client.instructions or "")[:4_000])
    lines = (" ".join(text[:4_000].split())[:MAX_CHARS] for text in (*texts, *plain.split("\n\n")))
    return next(filter(None, lines), "")


def _letters(text: str | None) -> str:
    return "".join(filter(str.isalnum, (text or "")[:MAX_CHARS].casefold()))


Answer = TypeVar("Answer")

State = Literal["idle", "starting", "ready", "failed", "login required", "closed"]


_NO_ROOTS = (
    "[mcp-code-bridge: this server asked for the client's directories (roots) and got none. The "
    "client has none, or reaches the bridge over HTTP. Name a directory among the server's "
    "arguments, or a root in MCP_BRIDGE_ROOTS.]"
)


def explain_missing_roots(result: dict[str, Json]) -> None:
    """Say in an empty or refusing result that the server got no roots."""
    content = result["content"] or [{"type": "text", "text": ""}]
    values = result.get("structuredContent")
    text = content[-1].get("text") if isinstance(content[-1], dict) else None
    if not isinstance(text, str):
        return
    refused = result.get("isError") is True and re.search(r"director|\broots?\b", text, re.I)
    if refused or text.rstrip().endswith(":") or not (text.strip() or values):
        content[-1]["text"] = said = f"{text.rstrip()}\n{_NO_ROOTS}".lstrip()
        result["content"] = content
        if isinstance(values, dict):
            values |= {name: said for name, value in values.items() if value == text}


_AGAIN: Mapping[requests.Reason, tuple[bool, bool]] = {
    "": (False, False),
    # A call may have had its effect.
    "connection lost": (True, False),
    # Status 404: the server cannot have acted on it.
    "session unknown": (True, True),
    # Reported in another way; a call connects again and fails.
    "session lost": (True, False),
    # Rejected unseen: arguments marked `x-mcp-header` must be repeated in headers.
    "headers": (False, True),
    # The user has visited the required addresses.
    "addresses": (False, True),
}
"""Whether a list request and a call are repeated, once for each reason."""

_CONNECTION_NUMBERS = itertools.count(1)
"""Shared by all servers, so that a redefined server never repeats a number."""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """A server as `servers` shows it."""

    server: str
    # "idle" before the first use and after an idle close; "failed" or "login required" after a
    # failed start or a broken connection, until the next request.
    state: State
    error: str = ""
    line: str = ""  # The last stderr line of its process, while it starts.
    pid: int | None = None
    tool_count: int | None = None
    # Its `name` and `version`, the `protocol` revision in use, `about` (its introduction), and
    # `changes`: "tools" if it announces changes of its tools.
    server_info: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0


class UpstreamServer:
    """One server. Requests may come from any task and be cancelled at any time."""

    def __init__(self, spec: ServerSpec, pool: PoolSettings, connections: Connections) -> None:
        self.spec = spec
        self._pool, self._connections = pool, connections
        self._share_key = share_key(spec, pool) if connections.are_shared else ""
        self.call_timeout = spec.call_timeout or pool.call_timeout
        self._prepare = partial(requests.prepare, spec.name, max_bytes=pool.max_message_bytes)
        self._permitting = anyio.Lock()
        self._connection: Connection | None = None
        # The client's roots, once a server asked for them, and the equal ones that it was given.
        self._roots: list[str] | None = None
        self._agreed: list[str] | None = None
        self._client: Hashable = None  # The client of the last call.
        self._closed = False
        self._connections_made = 0
        self._connection_number = 0
        self._listed_by = 0
        self._listed_at = -math.inf
        self._fresh_seconds = math.inf
        self._tools: tuple[Tool, ...] | None = None
        self._changes = 0
        self._offers: dict[Kind, tuple[dict[str, Json], ...]] = {}
        self._offer_changes = 0

    def state(self) -> ServerState:
        connection = self._connection
        state: State = "failed"
        if self._closed:
            state = "closed"
        elif connection is None or connection.idle:
            state = "idle"
        elif not connection.ready.is_set():
            state = "starting"
        elif connection.usable:
            state = "ready"
        elif isinstance(connection.failure, LoginRequiredError):
            state = "login required"
        error: object = ""
        if connection is not None and state in ("failed", "login required"):
            error = connection.failure or connection.end_report or connection.endpoint.end_report()
        live = connection is not None and not connection.ended.is_set()
        return ServerState(
            server=self.spec.name,
            state=state,
            error=str(error),
            line=connection.endpoint.last_line if connection and state == "starting" else "",
            pid=connection.endpoint.pid if connection and live else None,
            tool_count=None if self._tools is None else len(self._tools),
            server_info=_server_info(connection) if connection and live else {},
            restarts=max(0, self._connections_made - 1),
        )

    def close(self, *, drain: bool) -> None:
        self._closed = True
        if self._connection is not None:
            self._connections.leave(self._connection, self.lists_changed, drain=drain)

    def forget(self, *lists: ListName) -> None:
        """Drop the cached lists of tools, of resources and their templates, or of prompts."""
        if "tools" in lists:
            self._changes += 1
            self._tools = None
        self._offer_changes += lists != ("tools",)
        for kind in [kind for kind in self._offers if LISTS[kind].capability in lists]:
            del self._offers[kind]

    def roots_changed(self) -> None:
        self._agreed = None
        if self._connection is not None and len(self._connection.users) == 1:
            self._connection.roots_shared = False

    def lists_changed(self, *lists: ListName) -> None:
        self.forget(*lists)
        # A change of a list that was never requested concerns no caller.
        listed = self._connection is not None and self._connection.listings > 0
        if "tools" in lists and listed and self._pool.on_tools_changed is not None:
            self._pool.on_tools_changed(self.spec.name)

    @property
    def connection_epoch(self) -> tuple[int, int] | None:
        """Its connection's number and the count of tool changes; None without a usable connection.

        A list of tools from another epoch may differ from what a call meets now.
        """
        usable = self._connection is not None and self._connection.usable
        return (self._connection_number, self._changes) if usable else None

    def stop_if_unused(self) -> None:
        if self._connection is not None and self._connection.stop_if_unused():
            self.forget("tools")

    async def start(self) -> None:
        async with self._use():
            return

    async def tools(self, *, refresh: bool = False, patient: bool = False) -> tuple[Tool, ...]:
        """Return its tools, cached until the server announces a change or connects again."""
        current = self.connection_epoch is None or self._is_fresh(refresh)
        if self._tools is not None and current and not self._closed:
            return self._tools
        ask = partial(self._list_tools, refresh)
        return await self._ask(ask, lists=True, patient=patient, share_roots=False)

    async def offers(self, kind: Kind) -> tuple[dict[str, Json], ...]:
        """Return its resources, resource templates or prompts; () without the capability.

        Cached only if the server declares `listChanged`, because resources change often.
        """
        if (kept := self._offers.get(kind)) is not None and not self._closed:
            return kept
        what = f"{LIST_PREFIX}{LISTS[kind].words}"
        return await self._ask(partial(self._list_offers, kind), lists=True, what=what)

    async def _list_offers(self, kind: Kind, connection: Connection) -> tuple[dict[str, Json], ...]:
        before = self._offer_changes
        found = await requests.list_offers(connection, kind)
        announced = connection.declares(LISTS[kind].capability, "list_changed")
        cacheable = connection.cacheable and connection.usable and announced
        if cacheable and before == self._offer_changes:
            self._offers[kind] = found
        return found

    async def _ask(
        self,
        ask: Callable[[Connection], Awaitable[Answer]],
        *,
        lists: bool = False,
        what: str = f"{LIST_PREFIX}tools",
        patient: bool = False,
        share_roots: bool = True,
    ) -> Answer:
        """Make a request, and once more for each reason of `_AGAIN` that allows it.

        A request that `lists` has no effect. A `patient` one waits until a start succeeds or fails.
        """
        met: set[requests.Reason] = set()
        while True:
            reason: requests.Reason = ""
            failure: UpstreamError
            try:
                async with self._use(patient=patient, share_roots=share_roots) as connection:
                    try:
                        return await ask(connection)
                    except MCPError as error:
                        reason, failure = await requests.translate(connection, what, error)
                        raise failure from None
            except ToolCallError as error:
                failure, tried = error, bool(reason) or lists or "addresses" in met
                if not tried and await complete_url_elicitations(self.spec.name, what, error):
                    reason = "addresses"
            except UpstreamError as error:
                failure = error
                if error.code == "server_lost":
                    # The connection may have ended earlier, which only this request has shown.
                    reason = reason or "connection lost"
            if reason == "session lost" and not lists:
                failure = await self._reconnect(failure)
            if reason in met or not _AGAIN[reason][0 if lists else 1]:
                raise failure
            met.add(reason)
            if reason == "headers":
                # The SDK learns the marks from the list of tools.
                await self._ask(requests.list_tools, lists=True, share_roots=False)

    async def _list_tools(self, refresh: bool, connection: Connection) -> tuple[Tool, ...]:
        async with connection.listing:
            connection.listings += 1
            if self._tools is not None and self._is_fresh(refresh):
                return self._tools
            if not connection.usable and not self._closed:
                # The task that held the lock got no answer over this connection.
                raise lost_error(self.spec.name, "")
            before = self._changes
            found, fresh = await requests.list_tools(connection)
            tools = tuple(tool for tool in found if self.spec.tools.admits(tool.name))
            if tools == self._tools:
                # The same object, so that a comparison is cheap.
                tools = self._tools
            if connection.cacheable and connection.usable and before == self._changes:
                self._tools = tools
                self._listed_by = self._connection_number
                self._listed_at, self._fresh_seconds = anyio.current_time(), fresh
            return tools

    def _is_fresh(self, refresh: bool) -> bool:
        age = anyio.current_time() - self._listed_at
        longest = MIN_CACHE_SECONDS if refresh else self._fresh_seconds
        return self._listed_by == self._connection_number and age < longest

    async def call_tool(
        self, tool: str, arguments: Mapping[str, Json], *, timeout: float | None
    ) -> dict[str, Json]:
        if not self.spec.tools.admits(tool):
            message = (
                f"The tool {tool!r} of server {self.spec.name!r} may not be used: the server's "
                "configuration leaves it out."
            )
            raise CallDeniedError(message, host_detail=f"It is in {self.spec.source.path}.")
        seconds = self.call_timeout if timeout is None else timeout
        call = self._prepare("tools/call", f"tool {tool!r}", tool, arguments, seconds)
        result = await self._send_and_resolve(call)
        if self._connection is not None and self._connection.given_roots == []:
            explain_missing_roots(result)
        return result

    async def request(self, method: requests.Method, params: Mapping[str, Json]) -> dict[str, Json]:
        """Read a resource, get a prompt or complete an argument; return the server's own result."""
        kind = requests.KINDS.get(method)
        subject = params[LISTS[kind].identity] if kind else params["argument"]["name"]
        what = f"{kind.removesuffix('s') if kind else 'completion of'} {subject!r:.300}"
        call = self._prepare(method, what, subject if kind else "", params, self.call_timeout)
        try:
            return await self._send_and_resolve(call)
        except ToolCallError as error:
            refusal = error
        with suppress(UpstreamError):
            if kind and (similar := suggestion(kind, subject, await self.offers(kind))):
                refusal.message += f". {similar}"
        raise refusal

    async def watch_resource(self, uri: str, *, timeout: float | None = None) -> dict[str, Json]:
        seconds = self.call_timeout if timeout is None else timeout
        wait = partial(requests.await_update, uri=uri, seconds=seconds)
        await self._ask(wait, lists=True, what=f"resource {uri!r:.300}")
        return await self.request("resources/read", {"uri": uri})

    async def _send_and_resolve(self, call: requests.PendingRequest) -> dict[str, Json]:
        """Send a request and return its final result, after the answers that the server wants."""
        result = await self._ask(partial(requests.send, call=call), what=call.what)
        if result.get("resultType") != INPUT_REQUIRED:
            return result

        async def repeat(answers: dict[str, Json] | None, state: str | None) -> dict[str, Json]:
            more = replace(call, answers=answers, state=state)
            return await self._ask(partial(requests.send, call=more), what=call.what)

        return await resolve_input(
            self.spec.name, call.what, result, repeat, roots=self._pool.roots_of(self.spec)
        )

    @asynccontextmanager
    async def _use(
        self, *, patient: bool = False, share_roots: bool = True
    ) -> AsyncIterator[Connection]:
        if not self._is_up():
            # Concurrent callers share one permission.
            async with self._permitting:
                if not self._is_up():
                    await self._pool.admission.permit(self.spec)
        if caller := current_caller():
            self._client = caller.client
        connection = self._current()
        while share_roots:
            # Taking the lock yields to the event loop, so a call takes it only if needed.
            unshared = connection.sharing.locked() or not connection.roots_shared
            if connection.roots is None and unshared:
                async with self._ready(connection, patient=patient):
                    pass
                # One client after the other: a server does not say whose roots it wants.
                async with connection.sharing, self._ready(connection, patient=patient):
                    await self._share_roots(connection)
            if await self._has_own_roots(connection):
                break
            self._connections.leave(connection, self.lists_changed, drain=True)
            self._connection = None
            connection = self._current()
        async with self._ready(connection, patient=patient):
            yield connection

    @asynccontextmanager
    async def _ready(self, connection: Connection, *, patient: bool) -> AsyncIterator[None]:
        with connection.use():
            if not connection.ready.is_set():
                await connection.wait_ready(patient=patient)
            if connection.failure is not None:
                # Waiting tasks share one failure. Each raises it without others' frames.
                raise connection.failure.with_traceback(None)
            yield

    async def _share_roots(self, connection: Connection) -> None:
        """Give the client's roots to a server that asked for them at its start, before its call."""
        client = connection.client if current_caller() else None
        if client is None or connection.modern or connection.roots_shared:
            return
        connection.roots_shared = True  # Unless the server asks and gets none.
        with anyio.move_on_after(PROBE_SECONDS / 4), suppress(Exception):
            if connection.roots_asked is None:
                # A server that asks when it starts does so before it answers this.
                await client.list_tools()
            elif connection.roots_asked.is_set():
                connection.roots_asked = anyio.Event()
                await client.send_notification(RootsListChangedNotification())
            if connection.roots_asked is not None:
                await connection.roots_asked.wait()
                # The server reads the roots before it answers this.
                await client.list_tools()

    def _is_up(self) -> bool:
        return self._closed or (self._connection is not None and self._connection.usable)

    def _current(self) -> Connection:
        before = self._connection
        common = before.callers if before and before.usable and len(before.users) > 1 else None
        if before and common and common.have_been_asked and common.asked != self._client:
            # The next question could be another client's.
            self._connections.leave(before, self.lists_changed, drain=True)
            self._share_key, before = "", None
        if self._closed:
            raise UpstreamError(
                f"Server {self.spec.name!r} is closed.",
                server=self.spec.name,
                remedy="Its configuration was changed or removed, or the bridge is ending.",
                doubtful=False,
                code="server_lost",
            )
        if before is not None and before.usable:
            return before
        if before is None or not before.idle:
            self.forget(*get_args(ListName))
        self._connections_made += 1
        self._connection_number = next(_CONNECTION_NUMBERS)
        if before is not None:
            before.retire()
            # A process may have held something in memory.
            lost = before.endpoint.transport == "stdio" and before.uses > before.listings
            if lost and (caller := current_caller()) is not None:
                caller.note_restart(self.spec.name)
        connection = self._connections.find(self._share_key, self._roots)
        if connection is None:
            connection = Connection(self.spec, self._pool, before)
            connection.expected_roots = self._roots
            self._connections.start(connection, self._share_key)
        connection.users[self.lists_changed] = None
        self._connection = connection
        return connection

    async def _has_own_roots(self, connection: Connection) -> bool:
        """Whether the server has this client's roots, or has served no other client."""
        given, caller = connection.given_roots, current_caller()
        alone = len(connection.users) < 2 and not connection.inherited
        if alone or given is None or caller is None or self._agreed is given:
            return True
        answer = ListRootsResult(roots=[])
        with suppress(CannotAskError, ValidationError):
            wire = await caller.ask(self.spec.name, "roots/list", {})
            answer = ListRootsResult.model_validate(wire, by_name=False)
        # Clients name equal directories differently.
        self._roots = [str(root.uri) for root in answer.roots]
        if self._roots != connection.given_roots:
            return False
        self._agreed = connection.given_roots
        return True

    async def _reconnect(self, failure: UpstreamError) -> UpstreamError:
        """Connect again after a lost session, and return the error of the failed request."""
        try:
            await self.start()
        except LoginRequiredError as error:
            return error
        except BridgeError as error:
            found = f"It lists no tools either, and cannot be connected again: {error.message}"
        else:
            found = "Its session was lost. The bridge has connected again; make the call again."
        failure.message = f"{failure.message.rstrip('.')}. {found}"
        if isinstance(failure, ToolCallError):
            failure.by_tool = False
        return failure


def _server_info(connection: Connection) -> dict[str, str]:
    client = connection.client
    if client is None:
        return {}
    info = client.server_info
    facts = {
        "name": info.name if info else "",
        "version": info.version if info else "",
        "protocol": client.protocol_version or "",
        "about": introduction(client),
        "changes": "tools" if connection.declares("tools", "list_changed") else "",
    }
    return {key: value for key, value in facts.items() if value}
