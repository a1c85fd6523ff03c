"""How many runs a second: one sandbox each, and on the fast lane."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.bench import Bench
from benchmarks.bridge_client import Answer, Bridge, open_bridge
from benchmarks.engine_api import api_run
from benchmarks.engines import Engine
from benchmarks.results import Measurement
from benchmarks.targets import CONTAINERS
from bridge.sandbox.layers import OWN_NAMESPACES

AT_ONCE = 8

RUNS: Mapping[str, tuple[int, int]] = {
    "podman": (32, 16),
    "docker": (32, 16),
    "bubblewrap": (160, 24),
}
"""Of a full and of a quick benchmark: ten seconds or less each."""

LANE_RUNS = (600, 40)
FORKS = (2000, 300)

MOST_BESIDE_LANE = 0.02
"""Of the runs may have had a sandbox of their own: while a lane is replaced, some do."""

BARE_FORK = """
import asyncio, json, os, time
started = time.perf_counter()
for _ in range({count}):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print({count} / (time.perf_counter() - started))
"""


async def sustained(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs 8 at a time: the bridge's, then the engine's without it."""
    count = bench.count(*RUNS[engine.name])
    async with open_bridge(bench, engine) as bridge:
        await _rate(bridge, AT_ONCE * 2)
        figure = await _rate(bridge, count)
    await anyio.sleep(1.0)
    floor = await _own_rate(bench, engine, count)
    return [Measurement(row="sustained", engine=engine.name, figure=figure, floor=floor)]


async def _rate(bridge: Bridge, count: int, answers: list[Answer] | None = None) -> float:
    """Return runs per second with `AT_ONCE` under way at any time.

    Args:
        answers: Gets what came back.
    """
    found: list[Answer] = []
    left = iter(range(count))

    async def work() -> None:
        found.extend([await bridge.run() for _ in left])

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    taken = time.perf_counter() - started
    if answers is not None:
        answers += found
    return count / taken


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


async def fast_lane(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs on the fast lane, if the bridge really uses it here."""
    floor = await anyio.to_thread.run_sync(bare_forks, bench.count(*FORKS))
    count = bench.count(*LANE_RUNS)
    async with open_bridge(bench, engine, MCP_BRIDGE_ISOLATION="fork") as bridge:
        await _rate(bridge, AT_ONCE * 2)
        answers: list[Answer] = []
        figure = await _rate(bridge, count, answers)
    beside = [why for answer in answers if (why := beside_lane(answer.fields.get("isolation")))]
    if len(beside) > count * MOST_BESIDE_LANE:
        # A figure that the pool had a part in would be the pool's.
        why = f"{len(beside)} of {count} runs were not on the lane: {beside[-1]}"
        return [Measurement(row="fast-lane", engine=engine.name, floor=floor, unavailable=why)]
    return [
        Measurement(
            row="fast-lane",
            engine=engine.name,
            figure=figure,
            floor=floor,
            detail=f"{count - len(beside)} of {count} runs were on the lane",
        )
    ]


def beside_lane(isolation: Mapping[str, Any] | None) -> str:
    """Return why a run was not on the fast lane; empty when it was, as its result says."""
    said = isolation or {}
    if OWN_NAMESPACES in said.get("layers", ()):
        return ""
    why = [str(text) for text in said.get("weaker", ()) if str(text).startswith("fork: not used")]
    return "; ".join(why) or "its `isolation` does not say so"


def bare_forks(count: int) -> float:
    """Return how many times a second Python can fork and wait, with the usual modules loaded."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE_FORK.format(count=count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout))
