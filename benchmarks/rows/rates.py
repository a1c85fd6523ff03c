"""How many runs a second, one sandbox each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread

from benchmarks.bench import TOOL_SERVER, Bench
from benchmarks.bridge_client import NOTHING, Bridge, open_bridge
from benchmarks.engine_api import api_run
from benchmarks.engines import Engine
from benchmarks.figures import median, quantile
from benchmarks.processes import watch_growth
from benchmarks.results import Measurement, compare_medians
from benchmarks.targets import CONTAINERS

AT_ONCE = 8

CROWD = 64
"""Runs at once, most of which wait for their turn."""

CALLS = "for _ in range(10):\n    await mcp_tools.noop()"
TURNS = (3, 1)

RUNS: Mapping[str, tuple[int, int]] = {
    "podman": (32, 16),
    "docker": (32, 16),
    "bubblewrap": (160, 24),
    "kubernetes": (16, 8),
}
"""Of a full and of a quick benchmark: ten seconds or less each, where pods do not take longer."""


async def sustained(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs 8 at a time: the bridge's, then the engine's without it."""
    count = bench.count(*RUNS[engine.name])
    figure = await steady_rate(bench, engine, count)
    await anyio.sleep(1.0)
    floor = await _own_rate(bench, engine, count)
    return [Measurement(row="sustained", engine=engine.name, figure=figure, floor=floor)]


async def steady_rate(bench: Bench, engine: Engine, count: int) -> float:
    """Return the runs per second of a bridge whose ready sandboxes are used up."""
    async with open_bridge(bench, engine) as bridge:
        await _rate(bridge, AT_ONCE * 2)
        return await _rate(bridge, count)


async def crowded(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs with calls, 64 at a time and 8 at a time by turns, and what waiting takes."""
    count = bench.count(*RUNS[engine.name])
    few, many, times, rises = list[float](), list[float](), list[float](), list[float]()
    async with open_bridge(bench, engine, servers={"tools": TOOL_SERVER}) as bridge:
        await _rate(bridge, CROWD, CROWD, CALLS)
        for _ in range(bench.count(*TURNS)):
            few.append(await _rate(bridge, count, AT_ONCE, CALLS))
            growth = watch_growth(bridge.pid)
            many.append(await _rate(bridge, max(count, CROWD), CROWD, CALLS, times))
            rises.append(growth())
    return [
        compare_medians("crowd", many, few, engine=engine.name),
        Measurement(
            row="crowd-p99",
            engine=engine.name,
            figure=quantile(times, 0.99),
            floor=CROWD / median(few) * 1000,
        ),
        Measurement(row="crowd-memory", engine=engine.name, figure=max(rises) / (CROWD - AT_ONCE)),
    ]


async def _rate(
    bridge: Bridge,
    count: int,
    at_once: int = AT_ONCE,
    code: str = NOTHING,
    times: list[float] | None = None,
) -> float:
    """Return runs per second with `at_once` under way at any time.

    Args:
        times: Takes in how many milliseconds each took.
    """
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            answer = await bridge.run(code)
            if times is not None:
                times.append(answer.ms)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
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
