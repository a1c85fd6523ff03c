"""How fast the stdio transport is, against a floor measured in the same run.

The floor is a plain pipe to a process that answers with lines: the same bytes, with no protocol.
What counts are the ratios; absolute figures say more about the machine than about the code.
Most of a small call is the SDK's session, which both ways share: see the ratio to its client.

    python benchmarks/upstream_stdio.py [ROUND_TRIPS] [MEGABYTES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters

from bridge.model import MEBIBYTE, ServerSpec, Source
from bridge.upstream.pool import Pool

SERVER = """
import json, sys
for line in sys.stdin.buffer:
    m = json.loads(line)
    if "id" not in m: continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "bench", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        size = m["params"]["arguments"].get("size", 2)
        r = {"content": [{"type": "text", "text": "x" * size}]}
    out = json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}).encode() + b"\\n"
    sys.stdout.buffer.write(out); sys.stdout.buffer.flush()
"""

ECHO = """
import sys
for line in sys.stdin.buffer:
    out = b"x" * int(line) + b"\\n"
    sys.stdout.buffer.write(out); sys.stdout.buffer.flush()
"""

WARM_UP = 50


def measure_floor(trips: int, size: int) -> tuple[float, float]:
    """Return round trips per second of 150 bytes, and megabytes per second of one big line."""
    with subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError

        def trip(count: int) -> None:
            process.stdin.write(b"%d\n" % count)  # type: ignore[union-attr]  # checked above
            process.stdin.flush()  # type: ignore[union-attr]  # checked above
            process.stdout.readline()  # type: ignore[union-attr]  # checked above

        for _ in range(WARM_UP):
            trip(150)
        began = time.perf_counter()
        for _ in range(trips):
            trip(150)
        small = trips / (time.perf_counter() - began)
        began = time.perf_counter()
        trip(size)
        big = size / MEBIBYTE / (time.perf_counter() - began)
        process.stdin.close()
    return small, big


async def measure_pool(trips: int, size: int, log_dir: Path) -> tuple[float, float, float]:
    """Return calls per second one by one and 50 at a time, and megabytes per second of one."""
    source = Source(client="benchmark", scope="", path="-", key="-")
    spec = ServerSpec(
        name="bench", transport="stdio", source=source, command=sys.executable, args=("-c", SERVER)
    )
    async with Pool([spec], log_dir=log_dir, environ=dict(os.environ)) as pool:

        async def call(count: int) -> None:
            for _ in range(count):
                await pool.call_tool("bench", "echo", {})

        await call(WARM_UP)
        began = time.perf_counter()
        await call(trips)
        small = trips / (time.perf_counter() - began)
        began = time.perf_counter()
        async with anyio.create_task_group() as tg:
            for _ in range(50):
                tg.start_soon(call, max(1, trips // 50))
        wide = 50 * max(1, trips // 50) / (time.perf_counter() - began)
        began = time.perf_counter()
        await pool.call_tool("bench", "echo", {"size": size})
        big = size / MEBIBYTE / (time.perf_counter() - began)
    return small, wide, big


async def measure_sdk(trips: int) -> float:
    """Return calls per second, one by one, through the SDK's own client and transport."""
    server = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with Client(server, mode="legacy") as client:
        for _ in range(WARM_UP):
            await client.call_tool("echo", {})
        began = time.perf_counter()
        for _ in range(trips):
            await client.call_tool("echo", {})
        return trips / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    trips = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    size = (int(sys.argv[2]) if len(sys.argv) > 2 else 50) * MEBIBYTE
    floor_small, floor_big = measure_floor(trips, size)
    with tempfile.TemporaryDirectory() as directory:
        small, wide, big = anyio.run(measure_pool, trips, size, Path(directory))
    sdk = anyio.run(measure_sdk, trips)
    print(f"floor, plain pipe:      {floor_small:8.0f} round trips/s   {floor_big:7.0f} MB/s")
    print(f"calls, one by one:      {small:8.0f} /s   {small / floor_small:6.1%} of the floor")
    print(f"  of the SDK's client:  {sdk:8.0f} /s   {small / sdk:6.1%}")
    print(f"calls, 50 at a time:    {wide:8.0f} /s   {wide / floor_small:6.1%} of the floor")
    print(f"one answer of {size // MEBIBYTE:3d} MB:   {big:8.0f} MB/s {big / floor_big:6.1%}")


if __name__ == "__main__":
    main()
