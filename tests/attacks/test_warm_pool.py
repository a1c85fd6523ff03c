"""A waiting sandbox that dies while somebody asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from bridge.sandbox.pool import WarmPool
from tests.waiting import PATIENCE_SECONDS


@dataclass(eq=False)
class _Thing:
    died: anyio.Event = field(default_factory=anyio.Event)
    closing: anyio.Event = field(default_factory=anyio.Event)
    may_close: anyio.Event = field(default_factory=anyio.Event)


async def test_a_sandbox_that_is_being_destroyed_is_not_handed_over() -> None:
    opened: list[_Thing] = []
    grew = anyio.Event()

    @asynccontextmanager
    async def opener(_: str) -> AsyncIterator[_Thing]:
        nonlocal grew
        thing = _Thing()
        opened.append(thing)
        grew.set()
        grew = anyio.Event()
        try:
            yield thing
        finally:
            thing.closing.set()
            with anyio.CancelScope(shield=True):
                await thing.may_close.wait()

    async def wait_dead(thing: _Thing) -> None:
        await thing.died.wait()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with WarmPool(opener, most=1, wait_dead=wait_dead) as pool:
            async with pool.reserve("any") as reservation:
                (await reservation.get()).may_close.set()
            while pool.report.waiting == 0:
                await grew.wait()
                await anyio.wait_all_tasks_blocked()
            dying = opened[1]
            dying.died.set()
            await dying.closing.wait()
            async with anyio.create_task_group() as tasks:
                async with pool.reserve("any") as reservation:
                    tasks.start_soon(dying.may_close.wait)
                    dying.may_close.set()
                    fresh = await reservation.get()
                    assert fresh is not dying
                fresh.may_close.set()
