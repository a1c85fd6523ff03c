"""The watchdog sees what keeps the event loop, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from tests.watchdog import StalledError, Watchdog

SPENT = 0.5
"""Seconds of CPU time; twice of what the loop is allowed."""


HELD = 120_000_000
"""Numbers that take a second and more to add up."""


def spend() -> None:
    """Use CPU time, and let other threads have their turn."""
    end = time.thread_time() + SPENT
    while time.thread_time() < end:
        pass


def hold() -> None:
    """Use CPU time in one call of a built-in, which lets no other thread have its turn."""
    sum(range(HELD))


async def _on_the_loop() -> None:
    spend()


async def _in_a_thread_that_holds_the_interpreter() -> None:
    await anyio.to_thread.run_sync(hold)


async def _in_a_thread() -> None:
    await anyio.to_thread.run_sync(spend)


async def _in_turns() -> None:
    end = time.thread_time() + SPENT
    while time.thread_time() < end:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("work", [_on_the_loop, _in_a_thread_that_holds_the_interpreter])
def test_what_keeps_the_loop_from_everything_else_is_caught(work: Callable[[], object]) -> None:
    """Wherever it is done."""
    watchdog = Watchdog()

    async def main() -> None:
        with pytest.raises(StalledError, match="stood still"), watchdog.watching():
            await work()  # type: ignore[misc]

    anyio.run(main, backend_options=watchdog.backend[1])


@pytest.mark.parametrize("work", [_in_a_thread, _in_turns])
def test_work_that_lets_the_loop_turn_is_none_of_its_business(work: Callable[[], object]) -> None:
    """However much there is of it."""
    watchdog = Watchdog()

    async def main() -> None:
        with watchdog.watching():
            await work()  # type: ignore[misc]

    anyio.run(main, backend_options=watchdog.backend[1])
    assert watchdog.worst > 0
