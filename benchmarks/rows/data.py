"""Packages of a run against a virtual environment with bytecode: imports and a first plot."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

from benchmarks.bench import Bench, BenchmarkError
from benchmarks.bridge_client import Bridge, configure, open_bridge
from benchmarks.engines import Engine
from benchmarks.results import Measurement, compare_medians

RUNS = (9, 3)
"""Of a full and of a quick benchmark."""

PACKAGES = ("pandas", "matplotlib")

PROGRAM = """
import time
started = time.perf_counter()
import matplotlib.pyplot, os, pandas, sys
matplotlib.pyplot.plot([1, 2])
taken = (time.perf_counter() - started) * 1000
matplotlib.pyplot.close()
cached = [getattr(module, "__cached__", None) for module in [*sys.modules.values()]]
[taken, all(os.path.exists(path) for path in cached if path and path.startswith("/packages"))]
"""

ASKING = f"# /// script\n# dependencies = {list(PACKAGES)}\n# ///\n".replace("'", '"')
OTHER = ASKING.replace('"pandas", "matplotlib"', '"tabulate"')
"""For the environment: without packages its program would find it imported already."""

COMPILE_SECONDS = 600.0  # For a loaded machine to compile them in the background.


async def imports(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure what a program waits for pandas and matplotlib."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        place = Path(directory)
        await anyio.to_thread.run_sync(_make_environment, place / "venv")
        homes = bench.place(), bench.place()
        for home in homes:
            configure(home, {})
            settings = home / "config" / "mcp-code-bridge"
            settings.mkdir(parents=True)
            (settings / "config.toml").write_text(
                f'[dependencies]\nallow = ["@data"]\ncache = "{place / "cache"}"\n'
            )
        samples: list[float] = []
        floors: list[float] = []
        async with (
            open_bridge(bench, engine, home=homes[0]) as asked,
            open_bridge(
                bench, engine, home=homes[1], MCP_BRIDGE_PACKAGES=str(place / "venv")
            ) as environment,
        ):
            with anyio.fail_after(COMPILE_SECONDS):
                while not (await _taken(asked, ASKING))[1]:
                    continue
            await _taken(environment, OTHER)
            for _ in range(bench.count(*RUNS)):
                floors.append((await _taken(environment, OTHER))[0])
                samples.append((await _taken(asked, ASKING))[0])
    return [compare_medians("packages", samples, floors, engine=engine.name)]


async def _taken(bridge: Bridge, head: str) -> tuple[float, bool]:
    taken, is_compiled = (await bridge.run(head + PROGRAM, timeout=120)).result
    return float(taken), bool(is_compiled)


def _make_environment(place: Path) -> None:
    # Programs of a bridge that is root run as the user nobody.
    place.parent.chmod(0o755)
    uv = str(Path(sys.executable).with_name("uv"))
    try:
        for words in (
            ("venv", "--quiet", "--python", "/usr/bin/python3", str(place)),
            ("pip", "install", "--quiet", "--compile-bytecode", "--python", str(place), *PACKAGES),
        ):
            subprocess.run((uv, *words), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchmarkError(
            f"The environment to compare with could not be made: {error}"
        ) from None
