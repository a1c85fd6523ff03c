"""What the figures are taken on, without saying whose it is: no host name, no user, no path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from benchmarks.results import Machine

REPOSITORY = Path(__file__).parents[1]

GIT_SECONDS = 10
"""For reading one commit; it takes milliseconds."""


def machine() -> Machine:
    """Return this machine, with its load at this moment as the load before."""
    return Machine(
        cores=os.cpu_count() or 1,
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        kernel=platform.release(),
        cpu=cpu_model(_cpuinfo()),
        python=platform.python_version(),
        mcp=importlib.metadata.version("mcp"),
        load_before=round(os.getloadavg()[0], 2),
    )


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_model(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.machine()


def commit() -> str:
    """Return the short name of the commit, with "+" when files differ from it."""
    name = _git("rev-parse", "--short", "HEAD")
    if not name:
        return "unknown"
    return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
