"""Notifies clients that a list or a resource has changed.

A notified client drops its prompt cache. So clients are notified only if a list's text differs, and
once for many changes. Only the owner is notified of its artifacts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
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

logger = logging.getLogger(__name__)

MAX_URIS = 100  # Subscriptions of a client, of 2,048 characters each.


class NotifyingServer(Server[Any]):
    """A server that announces changing lists in every handshake, over HTTP as well."""

    def __init__(self, name: str, notices: Notices, **rest: Any) -> None:
        super().__init__(name, on_subscriptions_listen=notices.handle_listen, **rest)
        self.notices = notices

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        *more: Any,
        **others: Any,
    ) -> InitializationOptions:
        """Return the handshake's options; the SDK's transports pass no options."""
        own = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(notification_options or own, *more, **others)


class OwnedBus(InMemorySubscriptionBus):
    """Sends each event only to the streams of its owner."""

    def __init__(self) -> None:
        super().__init__()
        # The owner of the next stream that this task opens.
        self.owner: ContextVar[str] = ContextVar("owner", default="")
        self._receiver: str | None = None

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        owner = self.owner.get()

        def forward(event: ServerEvent) -> None:
            if self._receiver in (None, owner):
                listener(event)

        return super().subscribe(forward)

    async def publish(self, event: ServerEvent, owner: str | None = None) -> None:
        # All listeners run before another task does.
        self._receiver = owner
        await super().publish(event)


@dataclass(eq=False)
class _Subscriptions:
    """The subscriptions of a connection that used `initialize`.

    Attributes:
        lists: Whether it has requested a list, and is notified of changes.
    """

    owner: str
    lists: bool = False
    uris: set[str] = field(default_factory=set)


class Notices:
    """Notifies the clients of one server.

    Args:
        resources: Returns the part of `resources/list` that all clients see.
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
        self._last_tools: Hashable = None
        self._last_resources: Hashable = None
        self._connections: WeakKeyDictionary[Connection, _Subscriptions] = WeakKeyDictionary()
        self._news: set[tuple[str, str]] = set()
        self._bus = OwnedBus()
        self._changed = anyio.Event()
        self._listen = ListenHandler(self._bus, max_subscriptions=1024, max_buffered_events=64)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def handle_listen(
        self, context: ServerRequestContext[Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Handle `subscriptions/listen` (2026-07-28) until the client closes the stream."""
        uris = params.notifications.resource_subscriptions or ()
        if len(uris) > MAX_URIS or any(len(str(uri)) > 2048 for uri in uris):
            raise _too_many_error()
        self._bus.owner.set(self._owner(context))
        return await self._listen(context, params)

    def end_streams(self) -> None:
        self._listen.close()

    async def subscribe(
        self, context: ServerRequestContext[Any], params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Handle `resources/subscribe` of a client that used `initialize`.

        The URI is not checked: a client is never notified of a resource that it may not read.
        """
        own, uri = self._subscriptions_of(context), str(params.uri)
        if own is not None:
            if uri not in own.uris and len(own.uris) >= MAX_URIS or len(uri) > 2048:
                raise _too_many_error()
            own.uris.add(uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: ServerRequestContext[Any], params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        own = self._subscriptions_of(context)
        if own is not None:
            own.uris.discard(str(params.uri))
        return types.EmptyResult()

    def _subscriptions_of(self, context: ServerRequestContext[Any]) -> _Subscriptions | None:
        """Return the subscriptions of a client's connection; None since 2026-07-28."""
        # The SDK makes a session for each request and has no public access to the connection.
        connection = context.session._connection
        if connection.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return None
        own = self._connections.get(connection)
        if own is None:
            own = self._connections[connection] = _Subscriptions(self._owner(context))
        return own

    async def note_listing(self, context: ServerRequestContext[Any]) -> None:
        """Record that a client has requested a list and must be notified of changes."""
        own = self._subscriptions_of(context)
        if own is not None:
            own.lists = True
        # `run` notifies clients that saw an earlier list.
        if self._last_tools is None:
            self._last_tools = await self._tools()
        if self._last_resources is None:
            self._last_resources = self._resources()

    def note_update(self, uri: str, owner: str) -> None:
        """Record a change of an owner's resource; without `uri`, of the owner's list."""
        if len(self._news) < 1000:  # Clients find the rest by listing.
            self._news.add((uri, owner))
            self._changed.set()

    def note_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Compare lists and notify clients until cancelled."""
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
                # A client that requests the list gets the same error.
                logger.exception("clients could not be notified of a change")

    async def _compare(self) -> None:
        news, self._news = self._news, set()
        # No client has seen a list before the first request.
        if self._last_tools is not None:
            tools, resources = await self._tools(), self._resources()
            if tools != self._last_tools:
                self._last_tools = tools
                await self._publish(ToolsListChanged())
            if resources != self._last_resources:
                self._last_resources = resources
                news = {(uri, owner) for uri, owner in news if uri}
                await self._publish(ResourcesListChanged())
        for uri, owner in news:
            await self._publish(ResourceUpdated(uri=uri) if uri else ResourcesListChanged(), owner)

    async def _publish(self, event: ServerEvent, owner: str | None = None) -> None:
        """Notify all clients of an event, or only those of one owner."""
        await self._bus.publish(event, owner)
        uri = event.uri if isinstance(event, ResourceUpdated) else None

        async def notify(connection: Connection) -> None:
            with anyio.move_on_after(5.0):  # A client that does not read must not delay others.
                if uri is not None:
                    await connection.send_resource_updated(uri)
                elif isinstance(event, ToolsListChanged):
                    await connection.send_tool_list_changed()
                else:
                    await connection.send_resource_list_changed()

        async with anyio.create_task_group() as tasks:
            for connection, own in tuple(self._connections.items()):
                wanted = own.lists if uri is None else uri in own.uris
                if wanted and owner in (None, own.owner):
                    tasks.start_soon(notify, connection)


def _too_many_error() -> MCPError:
    message = f"A client may subscribe to {MAX_URIS} resources of 2,048 characters at most."
    return MCPError(types.INVALID_PARAMS, message)
