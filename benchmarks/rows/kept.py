"""What outlives a run: a session's next run and its checkpoint; output, files and pictures."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.bench import TOOL_SERVER, Bench, BenchmarkError
from benchmarks.bridge_client import Bridge, open_bridge, open_direct, timed_call
from benchmarks.engines import Engine
from benchmarks.results import Measurement, compare_medians

RUNS = (25, 3)
"""Of a full and of a quick benchmark."""

PACE_SECONDS = 0.5
"""Between two runs: for the next sandbox, and for a session's checkpoint."""

MEGABYTE = 1_000_000

SESSION = "bench"
HOLDS = f"data = bytes(range(256)) * {MEGABYTE // 256}\nnumbers = list(range(10_000))"
"""What the session holds whose checkpoint is measured."""

CHANGED = "numbers.append(len(numbers))"

SAVE_SECONDS = 20.0
"""For a checkpoint to be on the disk."""

LOOK_SECONDS = 0.001

# Each run leaves something else: what is there already would not be written again.
OUTPUT = f"""
import time
line = f"{{time.time_ns():x>999}}"
for _ in range({MEGABYTE // 1000}):
    print(line)
"""
FILE = f"""
import time
with open("out/data.bin", "wb") as file:
    file.write(time.time_ns().to_bytes({MEGABYTE}, "little"))
"""
PICTURE = """
import struct, time, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

class Picture:
    def _repr_png_(self):
        wave, first = bytes(range(256)) * 4, time.time_ns() % 256
        rows = (b"\\0" + wave[first + y : first + y + 300] for y in range(200))
        head = struct.pack(">IIBBBBB", 300, 200, 8, 0, 0, 0, 0)
        body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(rows), 0))
        return b"\\x89PNG\\r\\n\\x1a\\n" + body + chunk(b"IEND", b"")

display(Picture())
"""
"""One of 60 KB, as plots have them, that takes hardly any time to make."""


def _kept_output(fields: Mapping[str, Any]) -> bool:
    return "stdout" in (fields.get("whole") or {})


def _kept_file(fields: Mapping[str, Any]) -> bool:
    return [one["size"] for one in fields.get("artifacts") or ()] == [MEGABYTE]


def _shown_picture(fields: Mapping[str, Any]) -> bool:
    return [one["mimeType"] for one in fields.get("shown") or ()] == ["image/png"]


_PROGRAMS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "output-kept": (OUTPUT, _kept_output),
    "file-out": (FILE, _kept_file),
    "picture": (PICTURE, _shown_picture),
}
"""Of each row, and whether a result has what the program was run for."""


async def left(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure runs that leave something, and runs that leave nothing by turns with them."""
    samples: dict[str, list[float]] = {row: [] for row in _PROGRAMS}
    plain: list[float] = []
    async with open_bridge(bench, engine) as bridge:
        await bridge.run()
        for _ in range(bench.count(*RUNS)):
            for row, (code, has_left) in _PROGRAMS.items():
                await anyio.sleep(PACE_SECONDS)
                answer = await bridge.run(code)
                if not has_left(answer.fields):
                    message = f"A run of {row} left nothing: {answer.fields.get('missing')}"
                    raise BenchmarkError(message)
                samples[row].append(answer.ms)
            await anyio.sleep(PACE_SECONDS)
            plain.append((await bridge.run()).ms)
    return [_measured(row, engine, found, plain) for row, found in samples.items()]


async def session_run(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure further runs in a session, and no-op calls half-way between them."""
    runs: list[float] = []
    calls: list[float] = []
    async with (
        open_bridge(bench, engine) as bridge,
        open_direct(TOOL_SERVER, mode="auto") as direct,
    ):
        await bridge.run(session=SESSION)
        await timed_call(direct, "noop")
        for _ in range(bench.count(*RUNS)):
            await anyio.sleep(PACE_SECONDS)
            runs.append((await bridge.run(session=SESSION)).ms)
            await anyio.sleep(PACE_SECONDS)
            calls.append(await timed_call(direct, "noop"))
    return [_measured("session-run", engine, runs, calls)]


async def checkpoint(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure how long after a run's result the session's state is on the disk."""
    saved: list[float] = []
    written: list[float] = []
    size = 0
    async with open_bridge(bench, engine) as bridge:
        await bridge.run(HOLDS, session=SESSION)
        await _until_saved(bridge, 0.0)
        for _ in range(bench.count(*RUNS)):
            await anyio.sleep(PACE_SECONDS)
            before, size = _last_saved(bridge)
            await bridge.run(CHANGED, session=SESSION)
            saved.append(await _until_saved(bridge, before))
            written.append(await anyio.to_thread.run_sync(_write, bridge, size))
    detail = f"{size:,} bytes on the disk"
    return [_measured("checkpoint", engine, saved, written, detail)]


def _last_saved(bridge: Bridge) -> tuple[float, int]:
    """Return when the session's state was saved last, and its size; 0 before it was.

    The database says so once the state has its place and both are written out.
    """
    database = bridge.home / "state" / "store.db"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            found: tuple[float, int] | None = connection.execute(
                "SELECT saved, size FROM sessions"
            ).fetchone()
    except sqlite3.OperationalError:
        # It has not been made yet.
        found = None
    return found or (0.0, 0)


async def _until_saved(bridge: Bridge, before: float) -> float:
    """Wait until a new checkpoint is there; return the milliseconds that it took."""
    started = time.perf_counter()
    with anyio.fail_after(SAVE_SECONDS):
        while _last_saved(bridge)[0] == before:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(LOOK_SECONDS)
    return (time.perf_counter() - started) * 1000


def _write(bridge: Bridge, size: int) -> float:
    """Write so much to the same disk, as safely, and return the milliseconds."""
    data, path = os.urandom(size), bridge.home / "floor"
    started = time.perf_counter()
    with path.with_suffix(".new").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    return (time.perf_counter() - started) * 1000


def _measured(
    row: str, engine: Engine, figures: list[float], floors: list[float], detail: str = ""
) -> Measurement:
    return compare_medians(row, figures, floors, engine=engine.name, detail=detail)
