"""The pool of waiting sandboxes: each used once, none left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import LaunchError
from bridge.sandbox.pool import (
    SETTLE_SECONDS,
    PoolDecision,
    Reservation,
    WarmPool,
    decide,
    target_size,
)
from tests.fuzz import clock

START_SECONDS = 0.2

KIND = "usual"


@dataclass(eq=False)
class _Thing:
    number: int
    kind: str
    died: anyio.Event = field(default_factory=anyio.Event)
    closed: bool = False


@dataclass
class _Factory:
    opened: list[_Thing] = field(default_factory=list)
    fail: bool = False
    close_seconds: float = 0.0
    opening: int = 0
    most_opening: int = 0

    @asynccontextmanager
    async def open(self, kind: str) -> AsyncIterator[_Thing]:
        self.opening += 1
        self.most_opening = max(self.most_opening, self.opening)
        try:
            await anyio.sleep(START_SECONDS)
            if self.fail:
                raise LaunchError("no")
        finally:
            self.opening -= 1
        thing = _Thing(number=len(self.opened), kind=kind)
        self.opened.append(thing)
        try:
            yield thing
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.close_seconds)
            thing.closed = True

    @property
    def open_now(self) -> list[int]:
        return [thing.number for thing in self.opened if not thing.closed]


async def _wait_dead(thing: _Thing) -> None:
    await thing.died.wait()


class _Pool(WarmPool[str, _Thing]):
    def __init__(self, most: int) -> None:
        self.factory = _Factory()
        super().__init__(self.factory.open, most=most, wait_dead=_wait_dead, cores=2)


async def _use(pool: WarmPool[str, _Thing], kind: str = KIND, seconds: float = 0.01) -> _Thing:
    """Claim a thing, use it for a while and let it go."""
    async with pool.reserve(kind) as reservation:
        thing = await reservation.get()
        assert not thing.closed
        assert thing.kind == kind
        await anyio.sleep(seconds)
        assert not thing.closed
    return thing


async def _burst(pool: WarmPool[str, _Thing], number: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(_use, pool)


def _on_the_clock(most: int) -> Callable[[Callable[[_Pool], Awaitable[None]]], Callable[[], None]]:
    def decorate(main: Callable[[_Pool], Awaitable[None]]) -> Callable[[], None]:
        async def open_pool() -> None:
            async with (pool := _Pool(most)):
                await main(pool)
                before = anyio.current_time()
            # Closing the pool closes what waits and what is opening, without waiting for it.
            assert anyio.current_time() - before < START_SECONDS / 10
            assert (pool.factory.open_now, pool.factory.opening, pool.report.alive) == ([], 0, 0)

        def run() -> None:
            clock.run(open_pool)

        run.__name__ = run.__qualname__ = main.__name__
        return run

    return decorate


@_on_the_clock(3)
async def test_nothing_is_opened_before_it_is_asked_for(pool: _Pool) -> None:
    await anyio.sleep(1000)
    assert pool.factory.opened == []


@_on_the_clock(0)
async def test_each_resource_is_used_once_and_closed_after_use(pool: _Pool) -> None:
    for expected in range(3):
        assert (await _use(pool)).number == expected
    await anyio.sleep(1)
    assert (pool.report.alive, pool.report.cold) == (0, 3)


@_on_the_clock(1)
async def test_the_second_claim_finds_its_resource_waiting(pool: _Pool) -> None:
    await _use(pool)
    await anyio.sleep(1)
    assert pool.factory.open_now == [1]
    before = anyio.current_time()
    assert (await _use(pool, seconds=0)).number == 1
    assert anyio.current_time() - before < START_SECONDS / 10
    assert (pool.report.cold, pool.report.warm) == (1, 1)


@_on_the_clock(1)
async def test_a_program_that_runs_long_is_not_waited_for(pool: _Pool) -> None:
    async with pool.reserve(KIND) as reservation:
        await reservation.get()
        await anyio.sleep(0.1)
        assert pool.factory.opening == 0
        await anyio.sleep(1)
        assert pool.factory.open_now == [0, 1]


@_on_the_clock(1)
async def test_a_claim_takes_over_what_is_being_opened(pool: _Pool) -> None:
    await _use(pool)
    await anyio.sleep(START_SECONDS / 2)
    assert pool.factory.opening == 1
    before = anyio.current_time()
    assert (await _use(pool, seconds=0)).number == 1
    assert anyio.current_time() - before < START_SECONDS
    assert pool.report.half == 1


@_on_the_clock(4)
async def test_runs_one_after_another_compete_with_no_start_but_their_own(pool: _Pool) -> None:
    for _ in range(20):
        await _use(pool)
    assert pool.factory.most_opening == 1
    assert len(pool.factory.opened) == 20


@_on_the_clock(4)
async def test_a_burst_is_met_the_next_time_and_forgotten_in_the_end(pool: _Pool) -> None:
    await _burst(pool, 6)
    pool.factory.most_opening = 0
    await anyio.sleep(5)
    assert (pool.report.waiting, pool.report.wanted, pool.factory.most_opening) == (4, 4, 1)
    await _burst(pool, 3)
    assert (pool.report.warm, pool.report.cold) == (3, 6)
    await anyio.sleep(151)
    assert len(pool.factory.open_now) == pool.report.waiting == 1
    await anyio.sleep(480)
    assert pool.factory.open_now == []


@_on_the_clock(1)
async def test_a_claim_does_not_wait_for_what_the_pool_does_next(pool: _Pool) -> None:
    await _use(pool)
    await anyio.sleep(1)
    async with pool.reserve("other") as reservation:
        await anyio.sleep(SETTLE_SECONDS / 2)
        assert pool.factory.open_now == [1]
        await reservation.get()
        assert pool.factory.open_now == [2]


@_on_the_clock(1)
async def test_a_resource_that_is_being_destroyed_is_not_handed_over(pool: _Pool) -> None:
    await _use(pool)
    await anyio.sleep(1)
    pool.factory.close_seconds = 5.0
    pool.factory.opened[1].died.set()
    await anyio.sleep(0.1)
    pool.factory.close_seconds = 0.0
    assert pool.factory.open_now == [1]
    assert (await _use(pool)).number == 2
    await anyio.sleep(6)
    assert (pool.report.died, pool.report.waiting) == (1, 1)


@_on_the_clock(2)
async def test_a_resource_of_another_kind_is_neither_handed_over_nor_kept(pool: _Pool) -> None:
    await _burst(pool, 2)
    await anyio.sleep(5)
    assert pool.factory.open_now == [2, 3]
    assert (await _use(pool, kind="other")).number == 4
    assert pool.factory.open_now == [4]
    await anyio.sleep(5)
    assert [pool.factory.opened[number].kind for number in pool.factory.open_now] == ["other"] * 2


@_on_the_clock(1)
async def test_who_asks_for_a_fresh_one_gets_it_and_what_waits_goes(pool: _Pool) -> None:
    await _use(pool)
    await anyio.sleep(1)
    async with pool.reserve(KIND, fresh=True) as reservation:
        assert (await reservation.get()).number == 2
        assert pool.factory.opened[1].closed


@_on_the_clock(0)
async def test_a_failure_to_open_reaches_the_claimer(pool: _Pool) -> None:
    pool.factory.fail = True
    with pytest.raises(LaunchError):
        await _use(pool)
    assert pool.report.alive == 0


@_on_the_clock(1)
async def test_a_claim_that_took_over_a_failing_start_tries_for_itself(pool: _Pool) -> None:
    await _use(pool)
    pool.factory.fail = True
    await anyio.sleep(START_SECONDS / 2)
    async with pool.reserve(KIND) as reservation, anyio.create_task_group() as tasks:
        tasks.start_soon(_got, reservation, 1)
        await anyio.sleep(START_SECONDS)
        pool.factory.fail = False


async def _got(reservation: Reservation[_Thing], number: int) -> None:
    assert (await reservation.get()).number == number


@_on_the_clock(1)
async def test_a_failure_ahead_of_time_is_not_repeated_until_somebody_asks(pool: _Pool) -> None:
    await _use(pool)
    pool.factory.fail = True
    await anyio.sleep(100)
    assert (pool.report.failed, pool.factory.opening) == (1, 0)
    pool.factory.fail = False
    assert (await _use(pool)).number == 1


@_on_the_clock(0)
async def test_a_claim_cancelled_while_opening_leaves_nothing(pool: _Pool) -> None:
    with anyio.move_on_after(START_SECONDS / 2):
        await _use(pool)
    await anyio.sleep(1)
    assert (pool.report.alive, pool.factory.opened) == (0, [])


@_on_the_clock(2)
async def test_closing_the_pool_closes_what_waits_and_what_is_opening(pool: _Pool) -> None:
    await _burst(pool, 2)
    await anyio.sleep(0.1 + START_SECONDS)
    assert (len(pool.factory.open_now), pool.factory.opening) == (1, 1)


@_on_the_clock(1)
async def test_draining_destroys_what_waits_and_nothing_else(pool: _Pool) -> None:
    async with pool.reserve(KIND) as reservation:
        await reservation.get()
        await anyio.sleep(1)
        await pool.drain()
        assert pool.factory.open_now == [0]
    await anyio.sleep(5)
    assert pool.factory.open_now == []


QUIET: dict[str, Any] = {"wanted": 3, "quiet": 9.0, "cores": 2}
QUIET |= dict.fromkeys(("waiting", "starting", "awaited", "running"), 0)


def _target(claims: tuple[float, ...], now: float, start: float = 0.2) -> int:
    return target_size(claims, now, most=8, start_seconds=start)


def test_slow_starts_ask_for_more_to_wait_and_fast_ones_do_not_shorten_a_burst() -> None:
    assert _target((0.0, 0.1), 1.0, start=0.02) == 2
    claims = (0.0, 1.0, 2.0, 3.0)
    assert [_target(claims, 3.0, start=seconds) for seconds in (0.2, 0.6, 1.1)] == [1, 2, 3]


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
    at_once = target_size(claims, now, most=most, start_seconds=start)
    then = target_size(claims, now + later, most=most, start_seconds=start)
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
