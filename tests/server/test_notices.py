"""Clients of both eras hear that their lists have changed."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.notices import Notices
from tests.engine_rig import ListFinder, workshop
from tests.server.listening_rig import listening
from tests.server.web_rig import web
from tests.waiting import PATIENCE_SECONDS

ERAS = ["legacy", "2026-07-28"]


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


async def test_over_http_every_client_is_told_and_one_that_is_gone_is_no_hindrance(
    engine: Engine, finder: ListFinder
) -> None:
    async with web(engine) as url, AsyncExitStack() as stack:
        staying = [await stack.enter_async_context(listening(url, mode)) for mode in ERAS * 2]
        async with listening(url, "legacy"):
            pass
        finder.specs = (workshop(), workshop("second"))
        await engine.servers.refresh()
        for heard in staying:
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
