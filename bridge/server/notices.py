"""Notifies clients that a list or a resource has changed.

A client that is notified drops its prompt cache, so it is notified only if a list's text differs,
and once for many changes together. Only the owner is notified of an owner's artifacts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bridge.tasks import background_task

logger = logging.getLogger(__name__)

MAX_URIS = 100  # Of 2,048 characters: a client can subscribe without end.


class NotifyingServer(Server[Any]):
    """A server that says in every handshake that its lists change, over HTTP as well."""

    def __init__(self, name: str, notices: Notices, **rest: Any) -> None:
        super().__init__(name, on_subscriptions_listen=notices.listen, **rest)
        self.notices = notices

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        *more: Any,
        **others: Any,
    ) -> InitializationOptions:
        """Return what the handshake says; transports of the SDK pass no options of their own."""
        own = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(notification_options or own, *more, **others)


class OwnedBus(InMemorySubscriptionBus):
    """Sends each event only to the streams of its owner."""

    def __init__(self) -> None:
        super().__init__()
        # Of the next stream that this task opens.
        self.owner: ContextVar[str] = ContextVar("owner", default="")
        self._meant: str | None = None

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Register a listener; see `SubscriptionBus`."""
        owner = self.owner.get()

        def forward(event: ServerEvent) -> None:
            if self._meant in (None, owner):
                listener(event)

        return super().subscribe(forward)

    async def publish(self, event: ServerEvent, owner: str | None = None) -> None:
        # All listeners are called before another task runs.
        self._meant = owner
        await super().publish(event)


@dataclass(eq=False)
class _Subscriptions:
    """The subscriptions of a connection that used `initialize`.

    Attributes:
        lists: Whether it has requested a list, and so is notified of changes.
    """

    owner: str
    lists: bool = False
    uris: set[str] = field(default_factory=set)


class Notices:
    """Notifies the clients of one server while it is `open`.

    Args:
        resources: Returns the content of `resources/list` that all clients see.
    """

    def __init__(
        self,
        tools: Callable[[], Awaitable[Hashable]],
        resources: Callable[[], Hashable],
        *,
        owner: Callable[[ServerRequestContext[Any]], str] = lambda _: "",
        quiet_seconds: float = 0.5,
    ) -> None:
        self._quiet_seconds = quiet_seconds
        self._tools = tools
        self._resources = resources
        self._owner = owner
        self._told_tools: Hashable = None
        self._told_resources: Hashable = None
        self._connections: WeakKeyDictionary[Connection, _Subscriptions] = WeakKeyDictionary()
        self._news: set[tuple[str, str]] = set()
        self._bus = OwnedBus()
        self._changed = anyio.Event()
        self._listen = ListenHandler(self._bus, max_subscriptions=1024, max_buffered_events=64)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(
        self, context: ServerRequestContext[Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Handle `subscriptions/listen` (2026-07-28) until the client closes the stream."""
        uris = params.notifications.resource_subscriptions or ()
        if len(uris) > MAX_URIS or any(len(str(uri)) > 2048 for uri in uris):
            raise _too_much()
        self._bus.owner.set(self._owner(context))
        return await self._listen(context, params)

    def end_streams(self) -> None:
        self._listen.close()

    async def subscribe(
        self, context: ServerRequestContext[Any], params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Handle `resources/subscribe` of a client that used `initialize`.

        The resource is not checked: a client is never notified of one that it may not read.
        """
        known, uri = self._of(context), str(params.uri)
        if known is not None:
            if uri not in known.uris and len(known.uris) >= MAX_URIS or len(uri) > 2048:
                raise _too_much()
            known.uris.add(uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: ServerRequestContext[Any], params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        known = self._of(context)
        if known is not None:
            known.uris.discard(str(params.uri))
        return types.EmptyResult()

    def _of(self, context: ServerRequestContext[Any]) -> _Subscriptions | None:
        """Return the subscriptions of a client's connection; None since 2026-07-28."""
        # The SDK makes a session for each request and has no public access to the connection.
        connection = context.session._connection
        if connection.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return None
        known = self._connections.get(connection)
        if known is None:
            known = self._connections[connection] = _Subscriptions(self._owner(context))
        return known

    async def note_listing(self, context: ServerRequestContext[Any]) -> None:
        """Record that a client has requested a list, and must be notified of its changes."""
        known = self._of(context)
        if known is not None:
            known.lists = True
        # Clients that saw an earlier list are notified by `run`.
        if self._told_tools is None:
            self._told_tools = await self._tools()
        if self._told_resources is None:
            self._told_resources = self._resources()

    def note_update(self, uri: str, owner: str) -> None:
        """Note that an owner's resource has changed; without `uri`, the list of them."""
        if len(self._news) < 1000:  # The rest is found by listing.
            self._news.add((uri, owner))
            self._changed.set()

    def note_change(self) -> None:
        self._changed.set()

    def open(self) -> AbstractAsyncContextManager[None]:
        """Compare lists and notify clients while this is open."""
        return background_task(self._run)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            with anyio.move_on_after(5.0):
                quiet = False
                while not quiet:
                    self._changed = anyio.Event()
                    with anyio.move_on_after(self._quiet_seconds) as wait:
                        await self._changed.wait()
                    quiet = wait.cancelled_caught
            self._changed = anyio.Event()
            try:
                await self._compare()
            except Exception:
                # The same error is reported to a client when it requests the list.
                logger.exception("clients could not be notified of a change")

    async def _compare(self) -> None:
        news, self._news = self._news, set()
        # Until a client has requested a list, it cannot change for a client.
        if self._told_tools is not None:
            tools, resources = await self._tools(), self._resources()
            if tools != self._told_tools:
                self._told_tools = tools
                await self._bus.publish(ToolsListChanged())
                await self._notify(Connection.send_tool_list_changed, lambda known: known.lists)
            if resources != self._told_resources:
                self._told_resources = resources
                news = {(uri, owner) for uri, owner in news if uri}
                await self._bus.publish(ResourcesListChanged())
                await self._notify(Connection.send_resource_list_changed, lambda known: known.lists)
        for uri, owner in news:
            event = ResourceUpdated(uri=uri) if uri else ResourcesListChanged()
            await self._bus.publish(event, owner)
            send = Connection.send_resource_list_changed
            if uri:
                send = partial(Connection.send_resource_updated, uri=uri)

            def concerns(known: _Subscriptions, uri: str = uri, owner: str = owner) -> bool:
                return known.owner == owner and (uri in known.uris if uri else known.lists)

            await self._notify(send, concerns)

    async def _notify(
        self, send: Callable[[Connection], Any], concerns: Callable[[_Subscriptions], bool]
    ) -> None:
        async def one(connection: Connection) -> None:
            with anyio.move_on_after(5.0):  # A client that does not read must not delay others.
                await send(connection)

        async with anyio.create_task_group() as tasks:
            for connection, known in tuple(self._connections.items()):
                if concerns(known):
                    tasks.start_soon(one, connection)


def _too_much() -> MCPError:
    message = f"A client may subscribe to {MAX_URIS} resources of 2,048 characters at most."
    return MCPError(types.INVALID_PARAMS, message)
