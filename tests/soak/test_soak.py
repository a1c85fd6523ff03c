"""A short soak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "programs", [(), pytest.param(("--day",), marks=pytest.mark.full)], ids=["attacks", "a day's"]
)
@pytest.mark.parametrize("backend", ["bubblewrap"])
def test_a_short_soak_finds_the_host_as_it_was(backend: str, programs: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.soak", "--runs", "9", "--backends", backend, *programs]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "complaints\n  none" in done.stdout
