"""Waiting for a resource of a server to change, over one connection.

Protocol: `resources/subscribe` and `resources/unsubscribe` (to 2025-11-25), or
`subscriptions/listen` (2026-07-28).
"""

from __future__ import annotations

from contextlib import suppress

import anyio
from mcp import ClientSession
from mcp.client.subscriptions import ResourceUpdated, SubscriptionLost, listen
from mcp.types import (
    EmptyResult,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS


class ResourceUpdates:
    """The tasks that wait for resources to change, over one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[anyio.Event]] = {}

    def wake(self, changed: str | None = None) -> None:
        """Wake the tasks that wait for this resource or for one that contains it.

        Without one wake all: the connection has ended, and the resources may have changed.
        """
        for watched, events in self._waiting.items():
            if changed is None or changed.startswith(watched):
                for event in events:
                    event.set()

    async def wait(self, client: ClientSession, uri: str) -> None:
        """Return when a resource has changed, or when the subscription has ended.

        Raises:
            MCPError: The server refused the subscription.
        """
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            with suppress(SubscriptionLost):
                async with listen(client, resource_subscriptions=[uri]) as changes:
                    async for change in changes:
                        if isinstance(change, ResourceUpdated):
                            return
            return
        event = anyio.Event()
        events = self._waiting.setdefault(uri, set())
        events.add(event)
        try:
            wanted = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
            await client.send_request(wanted, EmptyResult)
            await event.wait()
        finally:
            events.discard(event)
            if not events:
                self._waiting.pop(uri, None)
                over = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
                with anyio.move_on_after(2.0, shield=True), suppress(Exception):
                    await client.send_request(over, EmptyResult)
