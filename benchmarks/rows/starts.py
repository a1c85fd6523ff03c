"""What it takes to start sandboxes that no one made ready."""

from __future__ import annotations

import anyio
import anyio.to_thread

from benchmarks.bench import Bench
from benchmarks.bridge_client import open_bridge
from benchmarks.engines import Engine
from benchmarks.results import Measurement, compare_medians

COLD_RUNS = (12, 4)
BLOCK = (8, 4)
"""Runs back to back in one go, of which the first few may find a sandbox ready."""

BLOCKS = (2, 1)

MAX_READY = 6
"""Runs before a block that use up what was ready; more sandboxes than that are not kept ready
unless somebody asks for it."""


async def cold(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs with the pool off, and the engine's own between them."""
    runs: list[float] = []
    own: list[float] = []
    async with open_bridge(bench, engine, MCP_BRIDGE_WARM="0") as bridge:
        await bridge.run()
        for _ in range(bench.count(*COLD_RUNS)):
            runs.append((await bridge.run()).ms)
            # What is left of the run is removed in the background.
            await anyio.sleep(0.3)
            own.append(await anyio.to_thread.run_sync(engine.run_once))
    return [_against_own("cold", engine, runs, own)]


async def back_to_back(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs that follow each other at once, in blocks, and the engine's own after each."""
    runs: list[float] = []
    own: list[float] = []
    size = bench.count(*BLOCK)
    async with open_bridge(bench, engine) as bridge:
        await bridge.run()
        for _ in range(bench.count(*BLOCKS)):
            for _ in range(MAX_READY):
                await bridge.run()
            runs += [(await bridge.run()).ms for _ in range(size)]
            await anyio.sleep(1.0)
            own += [await anyio.to_thread.run_sync(engine.run_once) for _ in range(size)]
    return [_against_own("back-to-back", engine, runs, own)]


def _against_own(row: str, engine: Engine, runs: list[float], own: list[float]) -> Measurement:
    return compare_medians(row, runs, own, engine=engine.name)
