"""Session runs of several bridges on one PostgreSQL, near and far, as a table.

python -m benchmarks.shared_store

Each bridge is a process with bubblewrap sandboxes. Owners keep one session each at their bridge and
run in it one after another. The floor is the same without a shared store, on one bridge.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import quote

import anyio

from bridge.model import RunRequest
from bridge.runs import open_engine
from bridge.store import ServerUrl
from tests.engine_rig import ListFinder, settings_in
from tests.faulty_proxy import faulty_proxy
from tests.postgresql import PASSWORD, ROLE, server

OWNERS = 20
SECONDS = 10.0
DELAYS = (0.0, 0.01, 0.04)  # Seconds of a round trip.
BRIDGES = (2, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bridge", nargs=3, metavar=("NAME", "OWNERS", "URL"))
    chosen = parser.parse_args(arguments)
    if chosen.bridge:
        name, owners, url = chosen.bridge
        anyio.run(_serve, name, int(owners), url)
        return 0
    floor = _measure(1, "")
    print(f"one bridge, no shared store: {floor:.1f} session runs a second for {OWNERS} owners")
    print("| round trip | " + " | ".join(f"{count} bridges" for count in BRIDGES) + " |")
    print("|---|" + "---|" * len(BRIDGES))
    with server() as behind, faulty_proxy(behind.port) as proxy:
        login = f"{ROLE}:{quote(PASSWORD, safe='')}"
        url = f"postgresql://{login}@127.0.0.1:{proxy.port}/postgres"
        for delay in DELAYS:
            proxy.delay = delay / 2
            cells = [_measure(count, url) for count in BRIDGES]
            shown = " | ".join(f"{each:.1f} a second, {each / floor:.2f} ×" for each in cells)
            print(f"| {delay * 1000:.0f} ms | {shown} |", flush=True)
    return 0


def _measure(bridges: int, url: str) -> float:
    """Return the session runs a second of all bridges together."""
    command = [sys.executable, "-m", "benchmarks.shared_store", "--bridge"]
    started = [
        Popen(
            [*command, f"b{number}", str(OWNERS // bridges), url],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
        )
        for number in range(bridges)
    ]
    rates = []
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        out, _ = process.communicate()
        rates.append(float(out))
    return sum(rates)


async def _serve(name: str, owners: int, url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        settings = settings_in(Path(place), runtime="bubblewrap")
        settings = replace(settings, sessions=owners, runs=owners)
        if url:
            settings = replace(settings, store=ServerUrl(url), replica=name)
        async with open_engine(settings, finder=ListFinder()) as engine:
            counts = dict.fromkeys(range(owners), 0)

            async def once(number: int) -> None:
                request = RunRequest(code="x = 1", session="work", owner=f"{name}-{number}")
                assert (await engine.run(request)).status == "success"

            async def repeat(number: int) -> None:
                while True:
                    await once(number)
                    counts[number] += 1

            async with anyio.create_task_group() as opening:
                for number in range(owners):
                    opening.start_soon(once, number)
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            began = time.monotonic()
            with anyio.move_on_after(SECONDS):
                async with anyio.create_task_group() as tasks:
                    for number in range(owners):
                        tasks.start_soon(repeat, number)
            print(sum(counts.values()) / (time.monotonic() - began), flush=True)


if __name__ == "__main__":
    sys.exit(main())
