"""How many sandboxes wait, and when the next is started."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.sandbox.pool import PoolDecision, decide, wanted

BURST = (10.0, 10.01, 10.02, 10.03)

QUIET: dict[str, Any] = {
    **dict.fromkeys(("waiting", "starting", "awaited", "running"), 0),
    "wanted": 3,
    "quiet": 9.0,
    "cores": 2,
}


def _wanted(claims: tuple[float, ...], now: float, most: int = 8, start: float = 0.2) -> int:
    return wanted(claims, now, most=most, start_seconds=start)


@pytest.mark.parametrize(
    ("claims", "now", "number"),
    [
        ((), 100.0, 0),
        ((10.0,), 10.0, 1),
        ((10.0, 11.0, 12.0), 12.0, 1),
        (BURST, 10.03, 4),
        ((*BURST, 40.0), 40.0, 4),
        (BURST, 131.0, 1),
        (BURST, 610.1, 0),
    ],
    ids=["unused", "one", "apart", "burst", "burst before", "burst long ago", "forgotten"],
)
def test_as_many_wait_as_came_at_once_lately(
    claims: tuple[float, ...], now: float, number: int
) -> None:
    assert _wanted(claims, now) == number


def test_slow_starts_ask_for_more_to_wait() -> None:
    claims = (0.0, 1.0, 2.0, 3.0)
    assert [_wanted(claims, 3.0, start=seconds) for seconds in (0.2, 0.6, 1.1)] == [1, 2, 3]


@given(
    claims=st.lists(st.floats(0, 2000), max_size=64).map(sorted),
    later=st.floats(0, 2000),
    most=st.integers(0, 32),
    start=st.floats(0, 30),
)
def test_never_more_than_the_most_and_never_more_for_waiting_longer(
    claims: list[float], later: float, most: int, start: float
) -> None:
    now = claims[-1] if claims else 0.0
    at_once = wanted(claims, now, most=most, start_seconds=start)
    then = wanted(claims, now + later, most=most, start_seconds=start)
    assert 0 <= then <= at_once <= min(most, len(claims))


@pytest.mark.parametrize(
    ("change", "decision"),
    [
        ({}, PoolDecision(start=1)),
        ({"cores": 8}, PoolDecision(start=3)),
        ({"starting": 1}, PoolDecision()),
        ({"awaited": 1}, PoolDecision()),
        ({"wanted": 1, "waiting": 1}, PoolDecision()),
        ({"wanted": 1, "waiting": 3}, PoolDecision(drop=2)),
        ({"quiet": 0.0}, PoolDecision(start=1)),
        ({"quiet": 0.0, "running": 1}, PoolDecision(again=0.25)),
        ({"quiet": 0.0, "running": 1, "cores": 8}, PoolDecision(start=3)),
        ({"running": 1}, PoolDecision(start=1)),
    ],
    ids=str,
)
def test_starts_give_way_to_what_runs(change: dict[str, int], decision: PoolDecision) -> None:
    assert decide(**{**QUIET, **change}) == decision


def test_the_shortest_burst_does_not_depend_on_how_fast_sandboxes_start() -> None:
    claims = (0.0, 0.1)
    assert _wanted(claims, 1.0, start=0.02) == 2
