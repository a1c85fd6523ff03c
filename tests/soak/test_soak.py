"""The soak itself, briefly: that it works, and that it can find something."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import RunResult
from tests.soak.host import Sample, growth, trends
from tests.soak.programs import ATTACKS, HONEST, case

FLAT = Sample(
    runs=1, rss_mib=90.0, descriptors=20, threads=4, tasks=11, processes=3, groups=2, files=0
)


@pytest.mark.parametrize("programs", [(), ("--day",)], ids=["attacks", "a day's"])
@pytest.mark.parametrize("backend", ["bubblewrap"])
def test_a_short_soak_finds_the_host_as_it_was(backend: str, programs: tuple[str, ...]) -> None:
    """A process of its own, since everything of that process is looked at."""
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


def test_what_stays_the_same_is_no_trend() -> None:
    """Nor is a moment at which more was held."""
    busy = replace(FLAT, rss_mib=120.0, descriptors=25, threads=9)
    assert trends([FLAT, FLAT, busy, FLAT, FLAT]) == []


@pytest.mark.parametrize("name", ["descriptors", "tasks", "processes", "groups", "files"])
def test_one_thing_left_by_many_runs_is_a_finding(name: str) -> None:
    """However few there are."""
    [complaint] = trends([FLAT] * 4 + [replace(FLAT, **{name: getattr(FLAT, name) + 1})])
    assert name in complaint


def test_memory_that_grows_run_by_run_is_a_finding() -> None:
    """By more than allocators are to blame for."""
    grown = [replace(FLAT, runs=10 * step, rss_mib=90.0 + step) for step in range(20)]
    assert "memory grew" in trends(grown)[0]


def test_so_is_a_state_directory_that_grows() -> None:
    grown = [replace(FLAT, database_mib=step / 2, kept_mib=step / 3) for step in range(20)]
    assert [text.split()[0] for text in trends(grown)] == ["database_mib", "kept_mib"]


def test_the_audit_log_may_grow_and_is_reported() -> None:
    grown = [replace(FLAT, runs=100 * step, audit_mib=float(step)) for step in range(20)]
    assert trends(grown) == []
    assert "audit_mib +10.000" in growth(grown)


def test_memory_that_comes_back_is_no_leak() -> None:
    """Allocators keep what one run needed for a while, over several samples."""
    held = [*[90.0] * 12, *[104.0] * 6, 91.0, 91.0]
    assert trends([replace(FLAT, runs=10 * n, rss_mib=rss) for n, rss in enumerate(held)]) == []


def test_every_program_has_its_turn_and_every_third_is_honest() -> None:
    """Both rows are gone through from end to end."""
    turns = [case(number) for number in range(3 * len(ATTACKS) * len(HONEST))]
    assert {what.name for what in turns} == {what.name for what in (*ATTACKS, *HONEST)}
    assert all(what in HONEST for what in turns[2::3])


def test_a_wrong_answer_is_a_finding() -> None:
    """As is an end that the program must not have."""
    right = RunResult(run_id="", status="success", summary="", result=120)
    assert HONEST[0].complaint(right) == ""
    assert HONEST[0].complaint(replace(right, result=7))
    assert HONEST[0].complaint(replace(right, status="error", reason="crash"))
