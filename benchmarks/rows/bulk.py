"""Much data: a large result on its way into the sandbox, and a flood of output out of it."""

from __future__ import annotations

import subprocess
import sys
import time

import anyio
import anyio.to_thread

from benchmarks.bench import LEAN_SERVER, Bench, BenchmarkError
from benchmarks.bridge_client import open_bridge
from benchmarks.engines import Engine
from benchmarks.processes import watch_growth
from benchmarks.results import Measurement, compare_medians

SERVERS = {"lean": LEAN_SERVER}
MEGABYTE = 1_000_000

RESULT_MB = 50
RESULT_ROUNDS = (3, 1)
SMALL_MB, LARGE_MB = 4, 40
RUN_SECONDS = 120.0

STDOUT_LINES = (1_000_000, 100_000)
"""Of a thousand bytes each: 1 GB, or a tenth of it for a quick benchmark."""

FETCH = """
import time
await mcp_lean.big(size=1)
samples = []
for size in {sizes}:
    started = time.perf_counter()
    text = await mcp_lean.big(size=size)
    samples.append((time.perf_counter() - started) * 1000)
    assert len(text) == size
    del text
samples
"""

FLOOD = """
import sys
line = "x" * 999 + "\\n"
for _ in range({lines}):
    sys.stdout.write(line)
"""

_PIPE_WRITER = (
    "import os, sys\n"
    f"sys.path.insert(0, {LEAN_SERVER[1].rpartition('/')[0]!r})\n"
    "from leanserver import text\n"
    "data = memoryview(text(int(sys.argv[1])).encode())\n"
    "os.write(1, b'.')\n"
    "os.read(0, 1)\n"
    "while data:\n"
    "    data = data[os.write(1, data):]\n"
)
"""Says that it has the data, waits to be told, writes it."""


def pipe_copy(size: int) -> float:
    """Copy so many bytes through a pipe and return the milliseconds."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PIPE_WRITER, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.read(1)
        started = time.perf_counter()
        process.stdin.write(b".")
        pieces = []
        while piece := process.stdout.read(MEGABYTE):
            pieces.append(piece)
        data = b"".join(pieces)
        taken = (time.perf_counter() - started) * 1000
    if len(data) != size:
        message = f"The pipe carried {len(data):,} of {size:,} bytes."
        raise BenchmarkError(message)
    return taken


async def result(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure 50 MB from a tool: the time inside, a pipe's, and the bridge's memory."""
    size = RESULT_MB * MEGABYTE
    inside: list[float] = []
    copied: list[float] = []
    grown: list[float] = []
    async with open_bridge(bench, engine, servers=SERVERS) as bridge:
        # The server makes its answer at the first call, which does not count.
        await bridge.run(FETCH.format(sizes=[size]), timeout=RUN_SECONDS)
        for _ in range(bench.count(*RESULT_ROUNDS)):
            await anyio.sleep(1.0)
            growth = watch_growth(bridge.pid)
            answer = await bridge.run(FETCH.format(sizes=[size]), timeout=RUN_SECONDS)
            grown.append(growth())
            inside += answer.result
            copied.append(await anyio.to_thread.run_sync(pipe_copy, size))
    return [
        compare_medians("result-time", inside, copied, engine=engine.name),
        Measurement(
            row="result-memory",
            engine=engine.name,
            figure=max(grown),
            floor=size / 2**20,
            samples=tuple(grown),
        ),
    ]


async def linear(bench: Bench, engine: Engine) -> list[Measurement]:
    """Compare the cost of a megabyte in a small and in a large result."""
    sizes = [SMALL_MB * MEGABYTE, LARGE_MB * MEGABYTE]
    rounds = bench.count(5, 2)
    async with open_bridge(bench, engine, servers=SERVERS) as bridge:
        await bridge.run(FETCH.format(sizes=sizes), timeout=RUN_SECONDS)
        answer = await bridge.run(FETCH.format(sizes=sizes * rounds), timeout=RUN_SECONDS)
    small = [ms / SMALL_MB for ms in answer.result[0::2]]
    large = [ms / LARGE_MB for ms in answer.result[1::2]]
    return [compare_medians("linear-bytes", large, small, detail=f"measured on {engine.name}")]


def head(lines: int) -> float:
    """Return the seconds of `python … | head -c`, which reads everything and keeps nothing."""
    started = time.perf_counter()
    with (
        subprocess.Popen(
            [sys.executable, "-c", FLOOD.format(lines=lines)], stdout=subprocess.PIPE
        ) as python,
        subprocess.Popen(
            ["head", "-c", str(lines * 1000)], stdin=python.stdout, stdout=subprocess.DEVNULL
        ) as reader,
    ):
        assert python.stdout is not None
        python.stdout.close()
        reader.wait()
    return time.perf_counter() - started


async def stdout(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure a flood of output: how long it takes, and what it does to the bridge's memory."""
    lines = bench.count(*STDOUT_LINES)
    async with open_bridge(bench, engine) as bridge:
        await bridge.run(FLOOD.format(lines=1000), timeout=RUN_SECONDS)
        await anyio.sleep(1.0)
        growth = watch_growth(bridge.pid)
        answer = await bridge.run(FLOOD.format(lines=lines), timeout=RUN_SECONDS)
        grown = growth()
    piped = await anyio.to_thread.run_sync(head, lines)
    dropped = dict(answer.fields.get("truncated") or {}).get("stdout", 0)
    return [
        Measurement(
            row="stdout-time",
            engine=engine.name,
            figure=answer.ms / 1000,
            floor=piped,
            detail=f"{lines * 1000:,} bytes, of which the result leaves out {dropped:,}",
        ),
        Measurement(row="stdout-memory", engine=engine.name, figure=grown),
    ]
