"""A bridge that is going to be killed: runs one program until then."""

from __future__ import annotations

import sys

import anyio

from bridge.model import RunRequest
from bridge.runs import open_engine
from bridge.settings import load
from tests.engine_rig import ListFinder, workshop


async def main() -> None:
    async with open_engine(load(), finder=ListFinder(workshop())) as engine:
        await engine.run(RunRequest(code=sys.argv[1], timeout=100, principal="victim"))


if __name__ == "__main__":
    anyio.run(main)
