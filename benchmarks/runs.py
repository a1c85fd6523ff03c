"""How long runs take, next to floors measured in the same minutes.

The floors: starting the same Python outside any sandbox, and a line echoed over a plain pipe. What
is reported is medians of milliseconds and their ratio to the floor; compare ratios, since machines
and their load differ. Run it with `make bench`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bridge.discovery.find import Discovery
from bridge.engine import Engine, open_engine
from bridge.model import RunRequest, ServerSpec, Source
from bridge.settings import load

ROUNDS = 15
CALLS = 300
WORKSHOP = Path(__file__).parents[1] / "tests" / "fakes" / "servers" / "workshop.py"

CALL_LOOP = f"""
import time
started = time.perf_counter()
for _ in range({CALLS}):
    await mcp_workshop.echo(a=1)
(time.perf_counter() - started) / {CALLS} * 1000
"""

GATHERED = f"""
import asyncio, time
started = time.perf_counter()
await asyncio.gather(*(mcp_workshop.echo(a=1) for _ in range({CALLS})))
(time.perf_counter() - started) / {CALLS} * 1000
"""


class _Finder:
    """Finds one server."""

    def stamp(self) -> object:
        return 0

    def find(self) -> Discovery:
        spec = ServerSpec(
            name="workshop",
            transport="stdio",
            source=Source(client="benchmark", scope="user", path=str(WORKSHOP), key=""),
            command=sys.executable,
            args=(str(WORKSHOP),),
        )
        return Discovery(servers=(spec,), skipped=(), warnings=(), stamp=())


def _median(samples: list[float]) -> float:
    return statistics.median(samples) * 1000


async def _timed(act: Callable[[], Awaitable[object]], *, pause: float = 0.0) -> list[float]:
    samples = []
    for _ in range(ROUNDS):
        await anyio.sleep(pause)
        started = time.perf_counter()
        await act()
        samples.append(time.perf_counter() - started)
    return samples


def _python_start() -> list[float]:
    samples = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", "print(1)"], capture_output=True, check=True
        )
        samples.append(time.perf_counter() - started)
    return samples


def _pipe_echo() -> float:
    program = (
        "import sys\n"
        "for line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.flush()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        started = time.perf_counter()
        for _ in range(CALLS):
            process.stdin.write(b'{"id":1}\n')
            process.stdin.flush()
            process.stdout.readline()
        taken = (time.perf_counter() - started) / CALLS * 1000
        process.stdin.close()
    return taken


async def _value(engine: Engine, code: str) -> float:
    result = await engine.run(RunRequest(code=code, timeout=60))
    assert result.status == "success", result.error
    return float(result.result)


async def measure(runtime: str, directory: str) -> None:
    """Print the figures of one engine."""
    floor, echo = _median(_python_start()), _pipe_echo()
    print(f"\n{runtime}: floors: python start {floor:.1f} ms, pipe echo {echo:.3f} ms")

    def show(what: str, value: float, against: float) -> None:
        print(f"  {what:<44}{value:9.2f} ms   {value / against:7.1f} × floor")

    for warm in ("0", "1"):
        environ = {**os.environ, "MCP_BRIDGE_STATE_DIR": directory}
        settings = load({"runtime": runtime, "warm": warm, "log_level": "ERROR"}, environ)
        async with open_engine(settings, finder=_Finder()) as engine:
            await engine.run(RunRequest(code="1"))

            async def run_nothing(engine: Engine = engine) -> None:
                await engine.run(RunRequest(code="1"))

            if warm == "0":
                show("run, sandbox started for it", _median(await _timed(run_nothing)), floor)
                continue
            samples = await _timed(run_nothing, pause=1.5)
            show("run, sandbox was ready", _median(samples), floor)
            show("run, back to back", _median(await _timed(run_nothing)), floor)
            await _value(engine, "await mcp_workshop.echo(a=1)\n1")
            show("tool call, one after the other", await _value(engine, CALL_LOOP), echo)
            show(f"tool call, {CALLS} gathered", await _value(engine, GATHERED), echo)


def main() -> None:
    """Measure on each engine that the environment names."""
    for runtime in os.environ.get("MCP_BENCH_ENGINES", "podman,docker").split(","):
        with TemporaryDirectory() as directory:
            anyio.run(measure, runtime, directory)


if __name__ == "__main__":
    main()
