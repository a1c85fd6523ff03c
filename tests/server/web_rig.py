"""The bridge on a port of its own, for clients that come over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.notices import NotifyingServer
from bridge.server.transports import HttpServer
from tests.waiting import until


@asynccontextmanager
async def serving(server: uvicorn.Server) -> AsyncIterator[str]:
    """Have a server serve on a port of 127.0.0.1; yield where, without a path."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True


@asynccontextmanager
async def web(engine: Engine) -> AsyncIterator[str]:
    """Serve the bridge over HTTP; yield its URL."""
    app = build_server(engine).streamable_http_app()
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    async with serving(uvicorn.Server(config)) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def served(
    engine: Engine,
) -> AsyncIterator[tuple[NotifyingServer, httpx2.AsyncClient]]:
    """Serve the bridge over HTTP as the command does; yield it and a client of its own."""
    bridge = build_server(engine)
    accept = {"accept": "application/json, text/event-stream"}
    with anyio.fail_after(60):
        async with (
            serving(HttpServer(bridge, "127.0.0.1", 0)) as url,
            httpx2.AsyncClient(base_url=url, headers=accept, timeout=60) as web,
        ):
            yield bridge, web
