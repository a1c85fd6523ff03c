"""Telling clients that what they have listed has changed.

Owns who is told, and when. A client that began with a handshake is told over its connection; from
2026-07-28 on a client is told over the streams that it opened with `subscriptions/listen`, and over
nothing else. What there is to list is decided below: here it is only compared.

A client that is told throws its prompt cache away, so it is told only of a list that reads
differently, and once for many changes that come together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any
from weakref import WeakSet

import anyio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bridge.beside import beside

logger = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""Nothing may change for this long before lists are compared: servers that start together learn
their tools within a second, and an editor writes a file in several steps."""

LONGEST_SECONDS = 5.0
"""For which comparing is put off while changes go on."""

SEND_SECONDS = 5.0
"""To hand a notice to one connection. A client that reads nothing must not keep it from others."""

MAX_SUBSCRIPTIONS = 1024
"""Streams open at once over all clients; beyond them a client is refused one."""

MAX_BUFFERED = 64
"""Notices kept for a stream whose client does not read; at that its stream is ended."""

Shown = Callable[[], Hashable]
"""Returns what a list shows at this moment; equal values mean that the list reads the same."""


class NotifyingServer(Server[Any]):
    """A server that says in every handshake that its lists change, over HTTP as well."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what the handshake says; transports of the SDK pass no options of their own."""
        options = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(
            notification_options or options, experimental_capabilities, extensions
        )


class Notices:
    """Tells the clients of one server. Runs while `running` is open.

    Args:
        tools: What `tools/list` shows.
        resources: What `resources/list` shows.
        quiet_seconds: How long nothing may change before they are compared.
    """

    def __init__(
        self, tools: Shown, resources: Shown, *, quiet_seconds: float = QUIET_SECONDS
    ) -> None:
        self._quiet_seconds = quiet_seconds
        self._tools = tools
        self._resources = resources
        self._told_tools: Hashable = None
        self._told_resources: Hashable = None
        self._connections: WeakSet[Connection] = WeakSet()
        self._bus = InMemorySubscriptionBus()
        self._changed = anyio.Event()
        self.listen = ListenHandler(
            self._bus, max_subscriptions=MAX_SUBSCRIPTIONS, max_buffered_events=MAX_BUFFERED
        )

    def listed(self, context: ServerRequestContext[Any]) -> None:
        """Note that a client has been shown a list, and is to be told when it changes."""
        # The SDK makes a session anew for each request and offers no other way to the connection.
        connection = context.session._connection
        if connection.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._connections.add(connection)
        # Whoever saw an earlier one is told by `run`.
        if self._told_tools is None:
            self._told_tools = self._tools()
        if self._told_resources is None:
            self._told_resources = self._resources()

    def changed(self) -> None:
        """Have the lists compared soon."""
        self._changed.set()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Compare and tell, as long as this is open."""
        return beside(self._run)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await self._settled()
            try:
                await self._compare()
            except Exception:
                # What cannot be described now is described, or fails, when a client asks.
                logger.exception("clients could not be told of a change")

    async def _settled(self) -> None:
        """Return when nothing has changed for a moment."""
        with anyio.move_on_after(LONGEST_SECONDS):
            quiet = False
            while not quiet:
                self._changed = anyio.Event()
                with anyio.move_on_after(self._quiet_seconds) as wait:
                    await self._changed.wait()
                quiet = wait.cancelled_caught
        self._changed = anyio.Event()

    async def _compare(self) -> None:
        if self._told_tools is None:
            # Nobody has seen any list yet.
            return
        tools, resources = self._tools(), self._resources()
        if tools != self._told_tools:
            self._told_tools = tools
            await self._bus.publish(ToolsListChanged())
            await self._tell(Connection.send_tool_list_changed)
        if resources != self._told_resources:
            self._told_resources = resources
            await self._bus.publish(ResourcesListChanged())
            await self._tell(Connection.send_resource_list_changed)

    async def _tell(self, send: Callable[[Connection], Any]) -> None:
        async def one(connection: Connection) -> None:
            with anyio.move_on_after(SEND_SECONDS):
                await send(connection)

        async with anyio.create_task_group() as tasks:
            for connection in tuple(self._connections):
                tasks.start_soon(one, connection)
