"""Clients of both eras hear that their lists have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.subscriptions import ResourcesListChanged, ToolsListChanged

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.notices import Notices
from tests.engine_rig import ListFinder, workshop
from tests.server.web_rig import web

PATIENCE_SECONDS = 120.0

ERAS = ["legacy", "2026-07-28"]


@dataclass
class Heard:
    """What one client was told, by either way."""

    client: Client
    told: list[str] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    def note(self, what: str) -> None:
        """Keep it, and wake who waits."""
        self.told.append(what)
        self.news.set()

    async def until(self, *wanted: str) -> None:
        """Return once these were told, and nothing else; on a slow machine perhaps repeatedly."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not {*wanted} <= {*self.told}:
                await self.news.wait()
                self.news = anyio.Event()
        assert {*self.told} == {*wanted}

    async def shown(self) -> str:
        """Return what the client sees of the servers."""
        tools = (await self.client.list_tools()).tools
        return tools[0].description or ""


@asynccontextmanager
async def listening(engine_or_server: Any, mode: Any) -> AsyncIterator[Heard]:
    """Connect a client that has listed once and listens."""
    heard: Heard | None = None

    async def handle(message: Any) -> None:
        method = getattr(message, "method", "")
        # A client of the newer era is shown here as well what came over its stream.
        if heard is not None and mode == "legacy" and method.endswith("list_changed"):
            heard.note(method.split("/")[1])

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(engine_or_server, mode=mode, message_handler=handle)
        )
        heard = Heard(client)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        if mode == "2026-07-28":
            ready = anyio.Event()
            tasks.start_soon(_listen, heard, ready)
            await ready.wait()
        await heard.shown()
        await client.list_resources()
        yield heard


async def _listen(heard: Heard, ready: anyio.Event) -> None:
    stream = heard.client.listen(tools_list_changed=True, resources_list_changed=True)
    async with stream as events:
        ready.set()
        async for event in events:
            if isinstance(event, ToolsListChanged):
                heard.note("tools")
            elif isinstance(event, ResourcesListChanged):
                heard.note("resources")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_hears_that_a_server_came_and_sees_it_when_it_lists_again(
    engine: Engine, finder: ListFinder, mode: str
) -> None:
    """Tools, since the description names servers; resources, of which each server has one."""
    async with listening(build_server(engine), mode) as heard:
        assert "mcp_second" not in await heard.shown()
        finder.specs = (workshop(), workshop("second"))
        await engine.servers.refresh()
        await heard.until("tools", "resources")
        assert "mcp_second" in await heard.shown()


async def test_every_session_of_a_server_is_told_and_one_that_is_gone_is_no_hindrance(
    engine: Engine, finder: ListFinder
) -> None:
    server = build_server(engine)
    async with AsyncExitStack() as stack:
        staying = [await stack.enter_async_context(listening(server, mode)) for mode in ERAS * 2]
        async with listening(server, "legacy"):
            pass
        finder.specs = (workshop("second"),)
        await engine.servers.refresh()
        for heard in staying:
            await heard.until("tools", "resources")


@pytest.mark.parametrize("mode", ERAS)
async def test_nobody_is_told_of_a_change_that_reads_the_same(
    engine: Engine, finder: ListFinder, mode: str
) -> None:
    async with listening(build_server(engine), mode) as heard:
        finder.specs = (replace(workshop(), call_timeout=7.0),)
        assert await engine.servers.refresh()
        finder.specs = (replace(workshop(), description="Another"),)
        assert await engine.servers.refresh()
        await heard.until("tools")


async def test_a_client_is_promised_in_the_handshake_that_it_will_be_told(engine: Engine) -> None:
    server = build_server(engine)
    async with Client(server, mode="legacy") as client:
        handshake = client.server_capabilities
    for promised in (handshake, server.get_capabilities(protocol_version="2026-07-28")):
        assert promised.tools is not None
        assert promised.tools.list_changed is True
        assert promised.resources is not None
        assert promised.resources.list_changed is True


async def test_over_http_clients_of_both_eras_are_told(engine: Engine, finder: ListFinder) -> None:
    async with web(engine) as url:
        await _all_are_told(url, engine, finder)


async def _all_are_told(url: str, engine: Engine, finder: ListFinder) -> None:
    async with AsyncExitStack() as stack:
        everybody = [
            await stack.enter_async_context(listening(url, mode)) for mode in (*ERAS, *ERAS)
        ]
        finder.specs = (workshop(), workshop("second"))
        await engine.servers.refresh()
        for heard in everybody:
            await heard.until("tools", "resources")
            assert "mcp_second" in await heard.shown()


class Session:
    """A request's session, of a connection that counts what is sent over it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection


@dataclass
class Context:
    """What a handler is given."""

    session: Session


async def test_changes_that_come_together_are_told_once() -> None:
    shown: list[Hashable] = ["first"]
    looks: list[Hashable] = []
    looked = anyio.Event()

    async def tools() -> Hashable:
        looks.append(shown[0])
        if len(looks) > 1:
            looked.set()
        return shown[0]

    made = Notices(tools, lambda: (), quiet_seconds=0.05)
    told: list[object] = []
    made._bus.subscribe(told.append)
    await made.listed(_context())
    async with made.running():
        for text in ("second", "third", "first"):
            shown[0] = text
            made.changed()
        with anyio.fail_after(PATIENCE_SECONDS):
            await looked.wait()
        assert (looks, told) == (["first", "first"], [])


def _context() -> Any:
    class Modern:
        protocol_version = "2026-07-28"

    return Context(Session(Modern()))
