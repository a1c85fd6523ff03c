"""The bridge on a port of its own, for clients that come over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn

from bridge.engine import Engine
from bridge.server.app import build_server
from bridge.server.notices import NotifyingServer
from bridge.server.transports import HttpServer
from tests.waiting import until


@asynccontextmanager
async def web(engine: Engine) -> AsyncIterator[str]:
    """Serve the bridge over HTTP; yield its URL."""
    app = build_server(engine).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.should_exit = True


@asynccontextmanager
async def served(
    engine: Engine,
) -> AsyncIterator[tuple[NotifyingServer, httpx2.AsyncClient]]:
    """Serve the bridge over HTTP as the command does; yield it and a client of its own."""
    bridge = build_server(engine)
    server = HttpServer(bridge, "127.0.0.1", 0)
    accept = {"accept": "application/json, text/event-stream"}
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=url, headers=accept, timeout=60) as web:
                yield bridge, web
            server.should_exit = True
