"""Which engines there are, and what they take when no one helps them.

Owns the command lines that are the floors of starting a sandbox. What the bridge does with an
engine is not its business.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.targets import CONTAINERS, LOCAL

TRIAL_SECONDS = 60
"""For the one run that shows that an engine works; a cold cache on a busy machine needs several."""

DEFAULT_IMAGE = "localhost/mcp-code-bridge-runtime:slim"
"""What `make image` gives to the engines for tests."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that works here.

    Attributes:
        version: As it says itself.
        run: The command line that runs `python3 -c 1` in it, and nothing else.
        image: Empty for bubblewrap.
        pace_seconds: Between two runs that each are to find a sandbox ready.
    """

    name: str
    version: str
    run: tuple[str, ...]
    image: str = ""
    pace_seconds: float = 1.0

    @property
    def environ(self) -> Mapping[str, str]:
        """What the bridge has to be told to use it, with the same image."""
        image = {"MCP_BRIDGE_IMAGE": self.image} if self.image else {}
        return {"MCP_BRIDGE_RUNTIME": self.name, **image}

    def run_once(self) -> float:
        """Run it and return the milliseconds that it took.

        Raises:
            subprocess.SubprocessError: It did not work.
        """
        started = time.perf_counter()
        subprocess.run(
            self.run,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=True,
        )
        return (time.perf_counter() - started) * 1000


def image_of(name: str, environ: Mapping[str, str]) -> str:
    """Return the image that a container engine is measured with."""
    return (
        environ.get("MCP_BRIDGE_IMAGE")
        or environ.get(f"MCP_TEST_IMAGE_{name.upper()}")
        or DEFAULT_IMAGE
    )


def run_command(name: str, image: str, python: str) -> tuple[str, ...]:
    """Return the command line of an engine's own run."""
    if name in CONTAINERS:
        return (name, "run", "--rm", "--network", "none", image, "python3", "-c", "1")
    bound = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
    return ("bwrap", "--unshare-all", "--die-with-parent", *bound, python, "-c", "1")


def find(name: str) -> Engine | str:
    """Return an engine, or why it cannot be measured."""
    program = "bwrap" if name == "bubblewrap" else name
    if shutil.which(program) is None:
        return f"there is no command {program} here"
    image = image_of(name, os.environ) if name in CONTAINERS else ""
    # The interpreter itself: starting a virtual environment's copy searches a few more paths.
    python = os.path.realpath(sys.executable)
    engine = Engine(
        name=name, version=_version(program), run=run_command(name, image, python), image=image
    )
    try:
        engine.run_once()
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"`{' '.join(engine.run[:2])}` fails: {said[-1] if said else error}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{' '.join(engine.run[:2])}` fails: {error}"
    return engine


def find_all(names: tuple[str, ...] = LOCAL) -> tuple[dict[str, Engine], dict[str, str]]:
    """Return the engines of this machine that work, and why the others do not."""
    working: dict[str, Engine] = {}
    skipped: dict[str, str] = {}
    for name in names:
        found = find(name)
        if isinstance(found, Engine):
            working[name] = found
        else:
            skipped[name] = found
    return working, skipped


def _version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(r"\d+(?:\.\d+)+", done.stdout)
    return found[0] if found else "unknown"
