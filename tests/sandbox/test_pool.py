"""The pool of waiting sandboxes: each used once, none left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from bridge.errors import LaunchError
from bridge.sandbox.pool import WarmPool


@dataclass(eq=False)
class _Thing:
    number: int
    died: anyio.Event = field(default_factory=anyio.Event)
    closed: bool = False


@dataclass
class _Factory:
    """Opens things and keeps account of them."""

    opened: list[_Thing] = field(default_factory=list)
    fail: bool = False
    gate: anyio.Event | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[_Thing]:
        if self.gate is not None:
            await self.gate.wait()
        if self.fail:
            message = "no"
            raise LaunchError(message)
        thing = _Thing(number=len(self.opened))
        self.opened.append(thing)
        self._tell()
        try:
            yield thing
        finally:
            thing.closed = True
            self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until(self, opened: int, closed: int) -> None:
        while (len(self.opened), sum(thing.closed for thing in self.opened)) != (opened, closed):
            await self.changed.wait()


async def _wait_dead(thing: _Thing) -> None:
    await thing.died.wait()


def _pool(factory: _Factory, size: int, max_idle: float = 600) -> WarmPool[_Thing]:
    return WarmPool(factory.open, size=size, wait_dead=_wait_dead, max_idle=max_idle)


async def test_nothing_is_opened_before_it_is_asked_for() -> None:
    """A bridge that is never used starts no sandbox."""
    factory = _Factory()
    async with _pool(factory, 3):
        await anyio.lowlevel.checkpoint()
        assert factory.opened == []


async def test_each_resource_is_used_once_and_closed_after_use() -> None:
    """Nothing of one run can be seen by the next."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 0) as pool:
            for expected in range(3):
                async with pool.reserve() as reservation:
                    assert (await reservation.get()).number == expected
            await factory.wait_until(opened=3, closed=3)
        assert pool.alive == 0


async def test_a_refilled_pool_hands_over_what_was_waiting() -> None:
    """The second claim finds its resource ready."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool:
            async with pool.reserve() as reservation:
                await reservation.get()
                pool.refill()
                await factory.wait_until(opened=2, closed=0)
            async with pool.reserve() as reservation:
                assert (await reservation.get()).number == 1
                assert len(factory.opened) == 2
        assert all(thing.closed for thing in factory.opened)


async def test_a_claim_takes_over_what_is_being_opened() -> None:
    """Runs in quick succession do not each start a sandbox from scratch."""
    factory = _Factory(gate=anyio.Event())
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool:
            pool.refill()
            async with pool.reserve() as reservation:
                assert factory.gate is not None
                factory.gate.set()
                await reservation.get()
                assert (len(factory.opened), pool.alive) == (1, 1)


async def test_a_resource_that_dies_while_waiting_is_not_handed_over() -> None:
    """A container that an operator removed must not fail the next run."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool:
            pool.refill()
            await factory.wait_until(opened=1, closed=0)
            factory.opened[0].died.set()
            await factory.wait_until(opened=1, closed=1)
            async with pool.reserve() as reservation:
                assert (await reservation.get()).number == 1


async def test_a_resource_nobody_uses_is_given_up() -> None:
    """A forgotten client does not hold memory for ever."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 1, max_idle=0.01) as pool:
            pool.refill()
            await factory.wait_until(opened=1, closed=1)


async def test_a_failure_to_open_reaches_the_claimer() -> None:
    """The error that the opener raised, not one of the pool's."""
    factory = _Factory(fail=True)
    with anyio.fail_after(5):
        async with _pool(factory, 0) as pool:
            with pytest.raises(LaunchError):
                async with pool.reserve() as reservation:
                    await reservation.get()
            assert pool.alive == 0


async def test_a_claim_that_took_over_a_failing_start_tries_for_itself() -> None:
    """The start was not made for it, and its cause may be over."""
    factory = _Factory(gate=anyio.Event(), fail=True)
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool:
            pool.refill()
            async with pool.reserve() as reservation:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reservation.get)
                    await anyio.wait_all_tasks_blocked()
                    assert factory.gate is not None
                    factory.gate.set()
                    while pool.alive == 1 and factory.fail:
                        await anyio.lowlevel.checkpoint()
                        factory.fail = False
                assert len(factory.opened) == 1


async def test_a_failure_ahead_of_time_leaves_the_next_claim_to_try_afresh() -> None:
    """An engine that was down for a moment is not remembered as broken."""
    factory = _Factory(fail=True)
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool:
            pool.refill()
            while pool.alive:
                await anyio.lowlevel.checkpoint()
            factory.fail = False
            async with pool.reserve() as reservation:
                assert (await reservation.get()).number == 0


async def test_a_claim_cancelled_while_opening_leaves_nothing() -> None:
    """The half-opened resource is abandoned with its claim."""
    factory = _Factory(gate=anyio.Event())
    with anyio.fail_after(5):
        async with _pool(factory, 0) as pool:
            with anyio.move_on_after(0.01):
                async with pool.reserve() as reservation:
                    await reservation.get()
            while pool.alive:
                await anyio.lowlevel.checkpoint()
    assert factory.opened == []


async def test_closing_the_pool_closes_what_waits_and_what_is_opening() -> None:
    """Leaving the pool leaves nothing, ready or not."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 2) as pool:
            pool.refill()
            await factory.wait_until(opened=2, closed=0)
            factory.gate = anyio.Event()
            async with pool.reserve():
                pass
            pool.refill()
    assert all(thing.closed for thing in factory.opened)
    assert pool.alive == 0


async def test_draining_destroys_what_waits_and_nothing_else() -> None:
    """Before a virtual machine is stopped, what waits in it has to go; what runs keeps it up."""
    factory = _Factory()
    with anyio.fail_after(5):
        async with _pool(factory, 1) as pool, pool.reserve() as reservation:
            await reservation.get()
            pool.refill()
            await factory.wait_until(opened=2, closed=0)
            await pool.drain()
            assert [thing.closed for thing in factory.opened] == [False, True]
