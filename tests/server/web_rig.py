"""The bridge on a port of its own, for clients that come over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import uvicorn

from bridge.engine import Engine
from bridge.server.app import build_server
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
