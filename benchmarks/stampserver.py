"""The bridge, noting on its clock when the first line of a program's output reaches it.

    python -m benchmarks.stampserver STAMPS

Clients get a program's output with its result, at its end, so what they see cannot tell how soon a
line was there. This serves like `mcp-code-bridge serve`, with one thing put between engine and
sandbox: it looks at the bytes that come out of the sandbox for the line, and appends the time to
the file STAMPS. The clock is the kernel's monotonic one, which every process shares.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio

from bridge.runs import open_engine
from bridge.sandbox.backend import Backend, LaunchSpec, Sandbox
from bridge.sandbox.selection import select_backend
from bridge.server.app import build_server
from bridge.server.stdio import STDIO, serve_stdio
from bridge.settings import Settings, load

LINE = "benchmark: the first line"


class _Stamped:
    """A sandbox, or a backend, that does what the real one does; see below for what is added."""

    def __init__(self, inner: Any, stamps: Path) -> None:
        self._inner = inner
        self._stamps = stamps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _StampedSandbox(_Stamped):
    async def receive(self) -> bytes:
        data: bytes = await self._inner.receive()
        if LINE.encode() in data:
            now = time.monotonic()
            with self._stamps.open("a") as file:
                file.write(f"{now}\n")
        return data


class _StampedBackend(_Stamped):
    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        async with self._inner.launch(spec) as sandbox:
            yield cast("Sandbox", _StampedSandbox(sandbox, self._stamps))


async def main(stamps: Path) -> None:
    """Serve one client on stdin and stdout."""

    async def chosen(settings: Settings) -> Backend:
        return cast("Backend", _StampedBackend(await select_backend(settings), stamps))

    async with open_engine(load(), choose_backend=chosen) as engine:
        await serve_stdio(build_server(engine, principal=STDIO))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
