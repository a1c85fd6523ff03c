"""The bridge over stdio as a client starts it, but with the fake backend under it."""

from __future__ import annotations

import os

import anyio

from bridge.runs import open_engine
from bridge.server.transports import serve_stdio
from bridge.settings import Settings, load
from tests.fakes.backend import FakeBackend


async def main() -> None:
    backend = FakeBackend()

    async def choose(_: Settings) -> FakeBackend:
        return backend

    async with open_engine(load({}, os.environ), choose_backend=choose) as engine:
        await serve_stdio(engine)


if __name__ == "__main__":
    anyio.run(main)
