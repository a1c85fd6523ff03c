"""Python interpreters of this machine, by version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


@cache
def interpreter_path(version: str) -> str | None:
    """Return an interpreter of that version, from pyenv or PATH."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python3"))]
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        candidates.append(on_path)
    for candidate in candidates:
        probe = subprocess.run([candidate, "-I", "-c", ""], capture_output=True, check=False)
        if probe.returncode == 0:
            return candidate
    return None


def require(version: str) -> str:
    """Return an interpreter of that version, or skip the test."""
    path = interpreter_path(version)
    if path is None:
        pytest.skip(f"no Python {version} here")
    return path
