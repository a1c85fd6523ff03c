"""Waiting until a server says that a resource of its has changed, in either era of the protocol."""

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

UNSUBSCRIBE_SECONDS = 2.0
"""For telling a server that nobody waits any more."""


class ResourceUpdates:
    """Who waits for resources to change over one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[anyio.Event]] = {}

    def updated(self, uri: str) -> None:
        """Wake those who wait for a resource, or for one that this is a part of."""
        for watched in [each for each in self._waiting if uri.startswith(each)]:
            self._wake(watched)

    def end(self) -> None:
        """Wake all: the connection has ended, and the resources may have changed."""
        for watched in self._waiting:
            self._wake(watched)

    def _wake(self, watched: str) -> None:
        for event in self._waiting[watched]:
            event.set()

    async def wait(self, client: ClientSession, uri: str) -> None:
        """Return once a resource has changed, or it can no longer be told whether it has.

        Raises:
            MCPError: The server does not take the subscription.
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
                with anyio.move_on_after(UNSUBSCRIBE_SECONDS, shield=True), suppress(Exception):
                    await client.send_request(over, EmptyResult)
