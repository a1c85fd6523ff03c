"""What a tool call from a program costs, beside the same call made by the SDK's client."""

from __future__ import annotations

import time

import anyio
from mcp import Client

from benchmarks.bench import LEAN_SERVER, TOOL_SERVER, Bench
from benchmarks.bridge_client import Bridge, open_bridge, open_direct, timed_call
from benchmarks.engines import Engine
from benchmarks.figures import median
from benchmarks.results import Measurement, compare_medians

SERVERS = {"bench": TOOL_SERVER, "lean": LEAN_SERVER}

CALLS = 100
"""In one block; blocks from the sandbox and direct ones take turns."""

BLOCKS = (6, 2)
GATHERED = 200
SLEEP_SECONDS = 0.05
GATHER_ROUNDS = (5, 2)

FEW_CALLS, MANY_CALLS = 200, 2000
"""Whose cost per call is compared."""

SEQUENTIAL = """
import time
samples = []
for _ in range({count}):
    started = time.perf_counter()
    await mcp_bench.noop()
    samples.append(round((time.perf_counter() - started) * 1000, 4))
samples
"""

GATHER = """
import asyncio, time
await {call}
started = time.perf_counter()
await asyncio.gather(*({call} for _ in range({count})))
(time.perf_counter() - started) * 1000
"""

LOOP = """
import time
await mcp_bench.noop()
started = time.perf_counter()
for _ in range({count}):
    await mcp_bench.noop()
(time.perf_counter() - started) * 1000 / {count}
"""

WARM_UP = 50
RUN_SECONDS = 60.0


async def sequential(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure calls one after another, in the program and by the client, in turns."""
    inside: list[float] = []
    direct: list[float] = []
    async with (
        open_bridge(bench, engine, servers=SERVERS) as bridge,
        open_direct(TOOL_SERVER) as client,
    ):
        await _value(bridge, LOOP.format(count=WARM_UP))
        for _ in range(WARM_UP):
            await timed_call(client, "noop")
        for _ in range(bench.count(*BLOCKS)):
            answer = await bridge.run(SEQUENTIAL.format(count=CALLS), timeout=RUN_SECONDS)
            inside += [float(sample) for sample in answer.result]
            # The next sandbox is being made ready, which would slow the client down.
            await anyio.sleep(0.5)
            direct += [await timed_call(client, "noop") for _ in range(CALLS)]
    return [compare_medians("call", inside, direct, engine=engine.name)]


async def gathered(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure 200 calls at once: to a tool that sleeps, and to one that does not."""
    inside: dict[str, list[float]] = {"noop": [], "sleep": []}
    direct: dict[str, list[float]] = {"noop": [], "sleep": []}
    calls = {"noop": "mcp_bench.noop()", "sleep": f"mcp_lean.sleep(seconds={SLEEP_SECONDS})"}
    async with (
        open_bridge(bench, engine, servers=SERVERS) as bridge,
        open_direct(TOOL_SERVER) as client,
        open_direct(LEAN_SERVER) as lean,
    ):
        await _value(bridge, LOOP.format(count=WARM_UP))
        for _ in range(WARM_UP):
            await timed_call(client, "noop")
        await timed_call(lean, "sleep", {"seconds": 0})
        for _ in range(bench.count(*GATHER_ROUNDS)):
            for tool, call in calls.items():
                code = GATHER.format(call=call, count=GATHERED)
                inside[tool].append(await _value(bridge, code))
                await anyio.sleep(0.5)
                direct[tool].append(await _gather(lean if tool == "sleep" else client, tool))
    asleep, awake = (median(inside[tool]) for tool in ("sleep", "noop"))
    return [
        Measurement(
            row="gather",
            engine=engine.name,
            figure=asleep,
            floor=median(direct["sleep"]),
            samples=tuple(inside["sleep"]),
            floor_samples=tuple(direct["sleep"]),
            detail="the server is one whose own cost is small",
        ),
        Measurement(
            row="throughput",
            engine=engine.name,
            figure=GATHERED / awake * 1000,
            floor=GATHERED / median(direct["noop"]) * 1000,
            samples=tuple(GATHERED / ms * 1000 for ms in inside["noop"]),
            floor_samples=tuple(GATHERED / ms * 1000 for ms in direct["noop"]),
        ),
    ]


async def _gather(client: Client, tool: str) -> float:
    arguments = {"seconds": SLEEP_SECONDS} if tool == "sleep" else {}
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(GATHERED):
            tasks.start_soon(client.call_tool, tool, arguments)
    return (time.perf_counter() - started) * 1000


async def linear(bench: Bench, engine: Engine) -> list[Measurement]:
    """Compare the cost of a call in a run of few and in a run of many."""
    few: list[float] = []
    many: list[float] = []
    async with open_bridge(bench, engine, servers=SERVERS) as bridge:
        await _value(bridge, LOOP.format(count=WARM_UP))
        for _ in range(bench.count(3, 1)):
            few.append(await _value(bridge, LOOP.format(count=FEW_CALLS)))
            many.append(await _value(bridge, LOOP.format(count=MANY_CALLS)))
    return [compare_medians("linear-calls", many, few, detail=f"measured on {engine.name}")]


async def _value(bridge: Bridge, code: str) -> float:
    return float((await bridge.run(code, timeout=RUN_SECONDS)).result)
