"""Clients of both eras that listen to what the bridge's server tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp import Client
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.types import EmptyResult, SubscribeRequest, SubscribeRequestParams

from tests.waiting import PATIENCE_SECONDS


@dataclass
class Heard:
    """What one client was told: "tools", "resources" or a resource's address."""

    client: Client
    told: set[str] = field(default_factory=set)
    news: anyio.Event = field(default_factory=anyio.Event)

    def note(self, what: str) -> None:
        self.told.add(what)
        self.news.set()

    async def until(self, *wanted: str) -> None:
        """Return once these were told, and nothing else; on a slow machine perhaps repeatedly."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not {*wanted} <= self.told:
                await self.news.wait()
                self.news = anyio.Event()
        assert self.told == {*wanted}
        self.told.clear()

    async def shown(self) -> str:
        tools = (await self.client.list_tools()).tools
        return tools[0].description or ""


@asynccontextmanager
async def listening(server: Any, mode: Any, *uris: str, tools: bool = True) -> AsyncIterator[Heard]:
    """Connect a client that has listed once, subscribes to resources and listens.

    Args:
        tools: Whether the server has any.
    """
    heard: Heard | None = None

    async def handle(message: Any) -> None:
        # A client of the newer era is shown here as well the input of its stream.
        method = getattr(message, "method", "")
        if heard is not None and mode == "legacy" and method.endswith("list_changed"):
            heard.note(method.split("/")[1])
        elif heard is not None and mode == "legacy" and method.endswith("/updated"):
            heard.note(str(message.params.uri))

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(server, mode=mode, message_handler=handle))
        heard = Heard(client)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        if mode == "2026-07-28":
            ready = anyio.Event()
            tasks.start_soon(_collect_events, heard, uris, tools, ready)
            await ready.wait()
        else:
            for uri in uris:
                request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, EmptyResult)
        if tools:
            await heard.shown()
        await client.list_resources()
        yield heard


async def _collect_events(
    heard: Heard, uris: tuple[str, ...], tools: bool, ready: anyio.Event
) -> None:
    stream = heard.client.listen(
        tools_list_changed=tools, resources_list_changed=True, resource_subscriptions=uris
    )
    async with stream as events:
        ready.set()
        async for event in events:
            if isinstance(event, ToolsListChanged):
                heard.note("tools")
            elif isinstance(event, ResourcesListChanged):
                heard.note("resources")
            elif isinstance(event, ResourceUpdated):
                heard.note(event.uri)
