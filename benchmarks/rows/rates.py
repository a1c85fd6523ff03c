"""How many runs a second, one sandbox each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread

from benchmarks.bench import Bench
from benchmarks.bridge_client import Bridge, open_bridge
from benchmarks.engine_api import api_run
from benchmarks.engines import Engine
from benchmarks.results import Measurement
from benchmarks.targets import CONTAINERS

AT_ONCE = 8

RUNS: Mapping[str, tuple[int, int]] = {
    "podman": (32, 16),
    "docker": (32, 16),
    "bubblewrap": (160, 24),
}
"""Of a full and of a quick benchmark: ten seconds or less each."""


async def sustained(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs 8 at a time: the bridge's, then the engine's without it."""
    count = bench.count(*RUNS[engine.name])
    async with open_bridge(bench, engine) as bridge:
        await _rate(bridge, AT_ONCE * 2)
        figure = await _rate(bridge, count)
    await anyio.sleep(1.0)
    floor = await _own_rate(bench, engine, count)
    return [Measurement(row="sustained", engine=engine.name, figure=figure, floor=floor)]


async def _rate(bridge: Bridge, count: int) -> float:
    """Return runs per second with `AT_ONCE` under way at any time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await bridge.run()

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    return count / (time.perf_counter() - started)


async def _own_rate(bench: Bench, engine: Engine, count: int) -> float:
    if engine.name not in CONTAINERS:
        return await anyio.to_thread.run_sync(threaded_rate, engine.run_once, count)
    async with api_run(engine, bench.place()) as run:
        return await anyio.to_thread.run_sync(threaded_rate, run, count)


def threaded_rate(act: Callable[[], object], count: int) -> float:
    """Return how often per second `act` can be done, `AT_ONCE` at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda _: act(), range(AT_ONCE)))
        started = time.perf_counter()
        list(threads.map(lambda _: act(), range(count)))
        return count / (time.perf_counter() - started)
