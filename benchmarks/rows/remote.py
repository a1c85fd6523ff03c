"""Programs on other machines: what the way there costs, by Kubernetes' attach stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread

from benchmarks.bench import Bench, BenchmarkError
from benchmarks.bridge_client import configure, environment, open_bridge
from benchmarks.cluster import WAITING, ClusterEngine
from benchmarks.engines import Engine
from benchmarks.processes import resident_mb
from benchmarks.results import Measurement, compare_medians
from benchmarks.rows.latency import SETTLE_RUNS
from benchmarks.rows.rates import RUNS, steady_rate, sustained
from bridge.sandbox.selection import select_backend
from bridge.settings import load
from tests.contract.programs import ECHO, spec

Exchange = Callable[[], Awaitable[None]]
"""Sends a message and waits until all of it is back."""

MESSAGE = b"x" * 100
BLOCKS = (5, 2)
MESSAGES = 100
"""In one block; blocks with and without the bridge take turns."""

CLAIMS = (12, 3)
READY_SECONDS = 60.0
"""For pods to wait, or to be gone."""

SESSIONS = (50, 4)
QUIET_SECONDS = 2.0
"""Before memory is looked at."""


async def message(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure a message to a program and back, without the bridge's protocol and with nothing."""
    assert isinstance(engine, ClusterEngine)
    bare = _through_bare_stream(engine)
    own, floor = list[float](), list[float]()
    async with _through_backend(bench, engine) as exchange, bare as bare_exchange:
        for act in (exchange, bare_exchange):
            await _times(act)
        for _ in range(bench.count(*BLOCKS)):
            own += await _times(exchange)
            floor += await _times(bare_exchange)
    return [_by_turns("message", engine, own, floor)]


@asynccontextmanager
async def _through_backend(bench: Bench, engine: Engine) -> AsyncIterator[Exchange]:
    home = bench.place()
    configure(home, {})
    async with AsyncExitStack() as stack:
        backend = await select_backend(load({}, environment(home, engine, {})))
        stack.push_async_callback(backend.aclose)
        sandbox = await stack.enter_async_context(backend.launch(spec(ECHO)))

        async def exchange() -> None:
            await sandbox.send(MESSAGE)
            left = len(MESSAGE)
            while left > 0:
                left -= len(await sandbox.receive())

        yield exchange


@asynccontextmanager
async def _through_bare_stream(engine: ClusterEngine) -> AsyncIterator[Exchange]:
    async with engine.bare_stream(("python3", "-I", "-S", "-c", ECHO)) as stream:

        async def exchange() -> None:
            await stream.send(b"\0" + MESSAGE)
            left = len(MESSAGE)
            while left > 0:
                data = await stream.recv(decode=False)
                left -= len(data) - 1 if data[:1] == b"\1" else 0

        yield exchange


async def _times(exchange: Exchange) -> list[float]:
    taken = []
    for _ in range(MESSAGES):
        started = time.perf_counter()
        await exchange()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


async def pod_waits(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs that claim a pod which waits, and between them bare pods."""
    assert isinstance(engine, ClusterEngine)
    runs, own = list[float](), list[float]()
    async with open_bridge(bench, engine.with_waiting_pods(), MCP_BRIDGE_WARM="0") as bridge:
        await bridge.run()
        for _ in range(bench.count(*CLAIMS)):
            await _until_running(engine, WAITING)
            runs.append((await bridge.run()).ms)
            await _until_running(engine, WAITING)
            own.append(await anyio.to_thread.run_sync(engine.run_once))
    return [_by_turns("pod-waits", engine, runs, own)]


async def _until_running(engine: ClusterEngine, count: int) -> None:
    """Wait until so many pods run, and none comes or goes."""
    running: int | None = None
    with anyio.move_on_after(READY_SECONDS):
        while (running := await anyio.to_thread.run_sync(engine.running)) != count:  # noqa: ASYNC110
            await anyio.sleep(0.1)  # nothing announces it
        return
    message = f"In {READY_SECONDS:g} s there were not {count} pods, but {running}."
    raise BenchmarkError(message)


async def nodes(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs 8 at a time: on two nodes, bare pods there, and on one node."""
    assert isinstance(engine, ClusterEngine)
    (both,) = await sustained(bench, engine)
    with engine.one_node():
        one = await steady_rate(bench, engine, bench.count(*RUNS[engine.name]))
    detail = "both nodes are this machine, whose processors are the limit"
    row = Measurement(row="nodes", engine=engine.name, figure=both.figure, floor=one, detail=detail)
    return [both, row]


async def streams(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure the bridge's memory with many sessions open, each of which has a pod's stream."""
    assert isinstance(engine, ClusterEngine)
    count = bench.count(*SESSIONS)
    first, *others = (f"s{number}" for number in range(count))
    async with open_bridge(
        bench, engine, MCP_BRIDGE_WARM="0", MCP_BRIDGE_SESSIONS=str(count)
    ) as bridge:
        for _ in range(SETTLE_RUNS):
            await bridge.run(session=first)
        await anyio.sleep(QUIET_SECONDS)
        before = resident_mb(bridge.pid)
        for name in others:
            await bridge.run(session=name)
        await _until_running(engine, count)
        await anyio.sleep(QUIET_SECONDS)
        after = resident_mb(bridge.pid)
    detail = f"{count} sessions; {(after - before) / (count - 1):.2f} MB for each beyond the first"
    return [
        Measurement(row="streams", engine=engine.name, figure=after, floor=before, detail=detail)
    ]


def _by_turns(
    row: str, engine: Engine, samples: list[float], floor_samples: list[float]
) -> Measurement:
    return compare_medians(row, samples, floor_samples, engine=engine.name)
