"""What it takes to start: sandboxes that no one made ready, and the bridge itself."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread

from benchmarks.bench import Bench, BenchmarkError, without_bridge_settings
from benchmarks.bridge_client import BRIDGE, configure, environment, open_bridge
from benchmarks.engines import Engine
from benchmarks.figures import median
from benchmarks.results import Measurement

COLD_RUNS = (12, 4)
BLOCK = (8, 4)
"""Runs back to back in one go, of which the first few may find a sandbox ready."""

BLOCKS = (2, 1)
STARTS = (12, 3)

MAX_READY = 6
"""Runs before a block that use up what was ready; more sandboxes than that are not kept ready
unless somebody asks for it."""

ANSWER_SECONDS = 60
"""For the process to answer; it takes about one."""


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
    return Measurement(
        row=row,
        engine=engine.name,
        figure=median(runs),
        floor=median(own),
        samples=tuple(runs),
        floor_samples=tuple(own),
    )


REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}

IMPORT = "import mcp, sys; sys.stdout.write('{}\\n'); sys.stdout.flush(); sys.stdin.read()"


async def first_answer(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure from starting the process to its first answer, and to the SDK being imported."""
    # As an installed package would be; the environment may keep Python from doing it.
    compileall.compile_dir(Path(__file__).parents[2] / "bridge", quiet=1)
    home = bench.place()
    configure(home, {})
    environ = environment(home, engine, {})
    answers: list[float] = []
    imports: list[float] = []
    for number in range(bench.count(*STARTS) + 1):
        answer = await anyio.to_thread.run_sync(until_line, BRIDGE, environ)
        imported = await anyio.to_thread.run_sync(
            until_line, (sys.executable, "-c", IMPORT), without_bridge_settings()
        )
        if number:  # the first fills the page cache
            answers.append(answer)
            imports.append(imported)
    return [
        Measurement(
            row="first-answer",
            figure=median(answers),
            floor=median(imports),
            samples=tuple(answers),
            floor_samples=tuple(imports),
        )
    ]


def until_line(command: tuple[str, ...], environ: dict[str, str]) -> float:
    """Start a process, send it a request and return the milliseconds until it wrote a line.

    Raises:
        BenchmarkError: It ended, or wrote something that is no JSON object.
    """
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(REQUEST).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        taken = (time.perf_counter() - started) * 1000
        process.stdin.close()
        process.stdout.read()
        process.wait(ANSWER_SECONDS)
    if not line.startswith(b"{") or b'"error"' in line:
        message = f"{Path(command[0]).name} did not answer: {line[:200]!r}"
        raise BenchmarkError(message)
    return taken
