"""Cancellation at every await of a session's life leaves nothing behind."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import anyio
import pytest

from bridge.upstream.connection import Connection
from bridge.upstream.pool import Pool
from tests.upstream.rig import Rig, wait_file
from tests.waiting import PATIENCE_SECONDS

MANY = 60
"""More awaits than any of the scenarios has; reaching it means that one waits in small steps."""


class CancelAtAwait:
    """Runs a coroutine and cancels its scope where it suspends for the n-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], number: int) -> None:
        self._coroutine = coroutine
        self._left = number
        self.reached = False

    def __await__(self) -> Generator[Any, Any, None]:
        with anyio.CancelScope() as scope:
            inner = self._coroutine.__await__()
            try:
                waited = next(inner)
                while True:
                    self._left -= 1
                    if self._left == 0:
                        self.reached = True
                        scope.cancel()
                    try:
                        sent = yield waited
                    except BaseException as error:
                        waited = inner.throw(error)
                    else:
                        waited = inner.send(sent)
            except StopIteration:
                pass


async def call(pool: Pool) -> None:
    await pool.call_tool("server", "echo", {"a": 1})


async def test_cancelling_at_any_await_of_a_whole_life_leaves_no_process(rig: Rig) -> None:
    """Entering the pool, starting, asking and closing, all in the cancelled task."""

    async def live() -> None:
        async with rig.pool(rig.raw()) as pool:
            await pool.call_tool("server", "spawn", {"kind": "setsid"})

    for number in range(1, MANY):
        run = CancelAtAwait(live(), number)
        with anyio.fail_after(PATIENCE_SECONDS):
            await run
        assert rig.survivors() == [], f"cancelled at await {number}"
        if not run.reached:
            break
    else:
        pytest.fail("the scenario never ended by itself")
    assert number > 3


async def test_a_cancelled_request_leaves_the_session_to_the_next(rig: Rig) -> None:
    """Whichever await it was cancelled at, the server still answers, and only one was started."""
    for number in range(1, MANY):
        async with rig.pool(rig.raw()) as pool:
            run = CancelAtAwait(call(pool), number)
            with anyio.fail_after(PATIENCE_SECONDS):
                await run
                result = await pool.call_tool("server", "echo", {"still": "here"})
            assert result["structuredContent"] == {"still": "here"}
            assert pool.states()["server"].restarts == 0
        if not run.reached:
            break
    else:
        pytest.fail("the scenario never ended by itself")


async def test_cancelling_the_owner_task_at_any_await_leaves_no_process(rig: Rig) -> None:
    """From before the spawn to after the last signal, and whoever waits for it is told."""
    for number in range(1, MANY):
        pool = rig.pool(rig.raw(), start_timeout=PATIENCE_SECONDS)
        connection = Connection(pool.server("server"), pool)
        run = CancelAtAwait(connection.run(None), number)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tg:
                tg.start_soon(_stop_when_ready, connection)
                await run
        assert rig.survivors() == [], f"cancelled at await {number}"
        assert connection.ended.is_set()
        assert connection.client is not None or connection.failure is not None
        if not run.reached:
            break
    else:
        pytest.fail("the owner task never ended by itself")
    assert number > 5


async def test_native_cancellation_of_the_owner_leaves_no_process(rig: Rig) -> None:
    """A pool whose surrounding scope is cancelled while a call is under way."""
    with anyio.CancelScope() as scope:
        async with rig.pool(rig.raw()) as pool, anyio.create_task_group() as tg:
            tg.start_soon(pool.call_tool, "server", "never", {"started": rig.path("started")})
            await wait_file(rig.path("started"))
            scope.cancel()
    assert scope.cancelled_caught
    assert rig.survivors() == []


async def test_a_stubborn_server_does_not_survive_a_cancelled_close(rig: Rig) -> None:
    """The ladder of signals is climbed to its end although no one waits for it patiently."""
    with anyio.CancelScope() as scope:
        async with rig.pool(rig.raw("stubborn")) as pool:
            await pool.server("server").start()
            scope.cancel()
    assert rig.survivors() == []


async def _stop_when_ready(connection: Connection) -> None:
    await connection.ready.wait()
    connection.stop()
