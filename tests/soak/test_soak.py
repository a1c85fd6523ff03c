"""Short soaks."""

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
    said = soaked("tests.soak", "--runs", "9", "--backends", backend, *programs)
    assert "complaints\n  none" in said


@pytest.mark.slow
def test_a_short_soak_of_three_bridges_under_faults_loses_nothing() -> None:
    assert " 0 violations" in soaked("benchmarks.shared_soak", "--seconds", "40", "--seed", "3")


def soaked(module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
