"""The bridge's stdio transport over pipes of this process, for a client that writes raw lines."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from bridge.descriptor_reader import input_of
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.stdio import STDIO, StdinMessages, StdoutMessages

PATIENCE = 30


class Peer:
    def __init__(self, writing: int, reading: int) -> None:
        self._writing = writing
        self._reading = reading
        self._read = b""
        os.set_blocking(writing, False)

    async def send(self, message: Any) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            await anyio.wait_writable(self._writing)
            rest = rest[os.write(self._writing, rest) :]

    async def receive(self) -> Any:
        while b"\n" not in self._read:
            await anyio.wait_readable(self._reading)
            self._read += os.read(self._reading, 65536)
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    async def answer(self, message: Any) -> Any:
        await self.send(message)
        while True:
            found = await self.receive()
            if "method" not in found:
                return found

    def close(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


def hello(version: str, **capabilities: Any) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "raw", "version": "1"},
    }
    return request(0, "initialize", params)


def request(number: int | str, method: str, params: Any = None) -> dict[str, Any]:
    found = {"jsonrpc": "2.0", "id": number, "method": method}
    return found if params is None else {**found, "params": params}


@asynccontextmanager
async def piped(
    engine: Engine, version: str = "2025-06-18", *, principal: str = STDIO, **capabilities: Any
) -> AsyncIterator[Peer]:
    there, back = os.pipe(), os.pipe()
    over = anyio.CancelScope()
    server = build_server(engine, principal=principal)
    options = server.create_initialization_options()
    peer = Peer(there[1], back[0])

    async def serve() -> None:
        writer = StdoutMessages(back[1], over)
        with over:
            await server.run(StdinMessages(input_of(there[0]), writer), writer, options)

    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                assert (await peer.answer(hello(version, **capabilities)))["result"]
                await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
                try:
                    yield peer
                finally:
                    peer.close()
    finally:
        for each in (there[0], *back):
            os.close(each)
