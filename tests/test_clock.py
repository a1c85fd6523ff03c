"""A run's time, which stands still for questions."""

from __future__ import annotations

import math

import anyio
import anyio.lowlevel

from bridge.event_loop import Clock
from tests.waiting import PATIENCE_SECONDS


async def test_time_passes_until_it_is_stopped_and_continues_where_it_stood() -> None:
    clock = Clock()
    with clock.stop():
        with clock.stop():
            assert not _runs(clock)
        assert not _runs(clock)
        first = clock.now()
        await _let_some_time_pass()
        assert clock.now() == first
    assert _runs(clock)
    assert clock.stopped_seconds > 0
    assert clock.now() >= first
    before = clock.now()
    await _let_some_time_pass()
    assert clock.now() > before


async def test_a_limit_does_not_fall_due_while_time_stands_still() -> None:
    clock = Clock()
    with clock.limit(100.0) as scope:
        due = scope.deadline
        with clock.stop():
            assert scope.deadline == math.inf
            await _let_some_time_pass()
        assert math.isclose(scope.deadline, due + clock.stopped_seconds)
        with clock.stop(), clock.limit(1.0) as inner:
            assert inner.deadline == math.inf
        assert not inner.cancelled_caught
        with clock.stop():
            clock.move_limit(scope, 200.0)
            assert scope.deadline == math.inf
        assert scope.deadline > due + 90


async def test_a_limit_that_falls_due_ends_what_is_inside() -> None:
    clock = Clock()
    with anyio.fail_after(PATIENCE_SECONDS):
        with clock.limit(0.0) as scope:
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def _let_some_time_pass() -> None:
    start = anyio.current_time()
    while anyio.current_time() == start:
        await anyio.lowlevel.checkpoint()


def _runs(clock: Clock) -> bool:
    return clock.running
