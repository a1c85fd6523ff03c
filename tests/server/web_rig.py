"""The bridge on a port of its own, for clients that come over HTTP."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import uvicorn
from anyio.abc import SocketAttribute, SocketStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.resources import NotifyingServer
from bridge.server.transports import HttpServer
from tests.waiting import until


@asynccontextmanager
async def serving(server: uvicorn.Server) -> AsyncIterator[str]:
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            await until(lambda: server.started)
            try:
                yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            finally:
                server.should_exit = True
    finally:
        # A server that a failing test cancels closes nothing.
        for listening in getattr(server, "servers", ()):
            listening.close()


@asynccontextmanager
async def web(engine: Engine) -> AsyncIterator[str]:
    app = build_server(engine).streamable_http_app()
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    async with serving(uvicorn.Server(config)) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[tuple[NotifyingServer, httpx2.AsyncClient]]:
    bridge = build_server(engine)
    accept = {"accept": "application/json, text/event-stream"}
    with anyio.fail_after(60):
        async with (
            serving(HttpServer(bridge, "127.0.0.1", 0)) as url,
            httpx2.AsyncClient(base_url=url, headers=accept, timeout=60) as web,
        ):
            yield bridge, web


@asynccontextmanager
async def connected(
    url: str, token: str, era: str = "legacy", **more: Any
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=era, **more) as client,
    ):
        yield client


class Proxy:
    def __init__(self) -> None:
        self._open: dict[anyio.CancelScope, tuple[SocketStream, SocketStream]] = {}

    @asynccontextmanager
    async def before(self, url: str) -> AsyncIterator[str]:
        there = httpx2.URL(url)

        async def join(client: SocketStream) -> None:
            async with client, await anyio.connect_tcp(there.host, there.port or 80) as server:
                async with anyio.create_task_group() as tasks:
                    scope = tasks.cancel_scope
                    self._open[scope] = (client, server)
                    tasks.start_soon(_copy, client, server, scope)
                    tasks.start_soon(_copy, server, client, scope)
                del self._open[scope]

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, join)
            port = listener.extra(SocketAttribute.local_port)
            yield str(there.copy_with(port=port))
            tasks.cancel_scope.cancel()

    def cut(self, *, reset: bool) -> None:
        for scope, streams in self._open.items():
            for stream in streams if reset else ():
                peer = stream.extra(SocketAttribute.raw_socket)
                with suppress(OSError):  # It may be closed already.
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            scope.cancel()


async def _copy(source: SocketStream, target: SocketStream, scope: anyio.CancelScope) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await target.send(await source.receive())
    scope.cancel()
