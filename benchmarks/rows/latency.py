"""How soon an answer is there when a sandbox is ready: warm runs, and the first line of output."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

import anyio
from mcp import Client

from benchmarks.bench import TOOL_SERVER, Bench, BenchmarkError
from benchmarks.bridge_client import Bridge, open_bridge, open_direct, timed_call
from benchmarks.engines import Engine
from benchmarks.figures import median, quantile
from benchmarks.processes import cpu_seconds
from benchmarks.results import Measurement, compare_medians
from benchmarks.stampserver import LINE
from benchmarks.targets import LOCAL

RUNS = (100, 6)
REMOTE_RUNS = (20, 4)
"""Of a full and of a quick benchmark."""

HOME_TURNS = (40, 4)
"""Pairs of runs of a full and of a quick benchmark."""

PACE_SECONDS = 1.0
"""Between two runs, as the target has it. The no-op call of the floor is made half-way."""

SETTLE_RUNS = 3
"""Before anything counts: the backend is chosen, modules and pages are loaded."""

GOES_ON_SECONDS = 0.05
"""How long the program of the first line continues, so that its end differs from its start."""

STAMP_SERVER = (sys.executable, "-m", "benchmarks.stampserver")
REPOSITORY = Path(__file__).parents[2]
LINE_PROGRAM = f"import time\nprint({LINE!r})\ntime.sleep({GOES_ON_SECONDS})"


async def settle(bridge: Bridge, code: str = "1+1") -> None:
    """Make the runs that do not count."""
    for _ in range(SETTLE_RUNS):
        await bridge.run(code)
        await anyio.sleep(PACE_SECONDS / 2)


async def paced(act: Callable[[], Awaitable[None]], count: int, pace: float = PACE_SECONDS) -> None:
    """Do something `count` times, its beginnings `pace` seconds apart or more."""
    due = anyio.current_time()
    for _ in range(count):
        await anyio.sleep_until(due)
        await act()
        due = max(due + pace, anyio.current_time())


class _Lines:
    """A bridge that notes when the first line of a program's output reaches it."""

    def __init__(self, bridge: Bridge, stamps: Path) -> None:
        self.bridge = bridge
        self._stamps = stamps

    async def until_first(self) -> float:
        """Run the program and return the milliseconds from the request to its first line."""
        seen = len(self._times())
        started = time.monotonic()
        await self.bridge.run(LINE_PROGRAM)
        times = self._times()
        if len(times) != seen + 1:
            message = "The line was not seen on its way to the engine; see stampserver."
            raise BenchmarkError(message)
        return (times[-1] - started) * 1000

    def _times(self) -> list[float]:
        text = self._stamps.read_text() if self._stamps.exists() else ""
        return [float(word) for word in text.split()]


@asynccontextmanager
async def _open_lines(bench: Bench, engine: Engine) -> AsyncIterator[_Lines]:
    stamps = bench.place() / "stamps"
    command = (*STAMP_SERVER, str(stamps))
    async with open_bridge(bench, engine, command=command, PYTHONPATH=str(REPOSITORY)) as bridge:
        await settle(bridge, LINE_PROGRAM)
        yield _Lines(bridge, stamps)


@asynccontextmanager
async def _open_warm(bench: Bench, engine: Engine) -> AsyncIterator[Bridge]:
    async with open_bridge(bench, engine) as bridge:
        await settle(bridge)
        yield bridge


@asynccontextmanager
async def _open_noop() -> AsyncIterator[Client]:
    # The client's own choice of protocol, as towards the bridge.
    async with open_direct(TOOL_SERVER, mode="auto") as client:
        await timed_call(client, "noop")
        yield client


async def warm(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure warm runs a second apart, and between them no-op calls at the same pace."""
    samples = _Samples()
    runs, pace = RUNS if engine.name in LOCAL else REMOTE_RUNS, engine.pace_seconds
    async with _open_warm(bench, engine) as bridge, _open_noop() as direct:

        async def turn() -> None:
            samples.runs.append((await bridge.run()).ms)
            await anyio.sleep(pace / 2)
            samples.calls.append(await timed_call(direct, "noop"))

        before = cpu_seconds(bridge.pid)
        await paced(turn, bench.count(*runs), pace)
        samples.cpu = cpu_seconds(bridge.pid) - before
    return samples.measurements(engine)


async def home(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure warm runs just after files changed at home and in /tmp, and by turns still ones."""
    changed, still = list[float](), list[float]()
    with NamedTemporaryFile(dir="/tmp") as elsewhere:
        async with _open_warm(bench, engine) as bridge:
            histories = (bridge.home / ".history", Path(elsewhere.name))

            async def turn() -> None:
                still.append((await bridge.run()).ms)
                await anyio.sleep(PACE_SECONDS / 2)
                # As clients do: into a new file, which takes the place of the old one.
                for history in histories:
                    other = history.with_suffix(".new")
                    other.write_text(str(len(still)))
                    other.rename(history)
                changed.append((await bridge.run()).ms)
                # The bridge looks closer for a second after a change.
                await anyio.sleep(1.5 * PACE_SECONDS)

            await paced(turn, bench.count(*HOME_TURNS))
    return [compare_medians("warm-home", changed, still, engine=engine.name)]


async def first_line(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure first lines a second apart, and between them no-op calls at the same pace."""
    samples = _Samples()
    async with _open_lines(bench, engine) as lines, _open_noop() as direct:

        async def second() -> None:
            samples.lines.append(await lines.until_first())
            await anyio.sleep(PACE_SECONDS / 2)
            samples.calls.append(await timed_call(direct, "noop"))

        await paced(second, bench.count(*RUNS))
    return samples.measurements(engine)


async def both(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure the two side by side, by two bridges half a second out of step.

    It takes half as long as one after the other. At each moment that counts, the other bridge has
    its next sandbox ready and does nothing.
    """
    samples = _Samples()
    async with (
        _open_warm(bench, engine) as bridge,
        _open_lines(bench, engine) as lines,
        _open_noop() as direct,
    ):

        async def second() -> None:
            samples.runs.append((await bridge.run()).ms)
            await anyio.sleep(PACE_SECONDS / 2)
            samples.calls.append(await timed_call(direct, "noop"))
            samples.lines.append(await lines.until_first())

        before = cpu_seconds(bridge.pid)
        await paced(second, bench.count(*RUNS))
        samples.cpu = cpu_seconds(bridge.pid) - before
    return samples.measurements(engine)


@dataclass(kw_only=True)
class _Samples:
    """Milliseconds of runs, of first lines and of no-op calls.

    Attributes:
        cpu: Seconds of CPU of the bridge's own process for all runs and what follows them.
    """

    cpu: float = 0.0
    runs: list[float] = field(default_factory=list)
    lines: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    def measurements(self, engine: Engine) -> list[Measurement]:
        """Return the rows that there are samples for."""
        found = []
        if self.runs:
            p90, p99 = quantile(self.runs, 0.9), quantile(self.runs, 0.99)
            pace = engine.pace_seconds
            apart = "" if pace == PACE_SECONDS else f", {pace:g} s apart"
            found.append(
                Measurement(
                    row="warm",
                    engine=engine.name,
                    figure=median(self.runs),
                    floor=median(self.calls),
                    samples=tuple(self.runs),
                    floor_samples=tuple(self.calls),
                    detail=f"p90 {p90:.1f} ms, p99 {p99:.1f} ms{apart}",
                )
            )
            cpu = self.cpu / len(self.runs) * 1000
            found.append(Measurement(row="warm-cpu", engine=engine.name, figure=cpu))
        if self.lines:
            found.append(
                Measurement(
                    row="first-line",
                    engine=engine.name,
                    figure=quantile(self.lines, 0.99),
                    floor=quantile(self.calls, 0.99),
                    samples=tuple(self.lines),
                    floor_samples=tuple(self.calls),
                    detail=f"p50 {median(self.lines):.1f} ms, from the request to the engine",
                )
            )
        return found
