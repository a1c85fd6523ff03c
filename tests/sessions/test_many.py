"""Many sessions, opened, idled out and restored: nothing is lost and nothing is left."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from bridge.settings import Settings
from bridge.store.schema import databases
from tests.fakes.backend import FakeBackend
from tests.session_rig import OWNER, reopened, run, saved_sessions, told
from tests.waiting import until

AT_ONCE = 3
"""Callers beside each other; each sandbox is a process on this machine."""


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("sessions", [12, pytest.param(200, marks=pytest.mark.full)])
async def test_many_sessions_idle_out_and_come_back(
    settings: Settings, backend: FakeBackend, sessions: int
) -> None:
    before = _descriptors()
    ids: dict[int, str] = {}

    async def open_some(first: int) -> None:
        for number in range(first, sessions, AT_ONCE):
            result = await run(engine, f"number = {number}", session=f"s{number}")
            assert told(result).state == "new"
            ids[number] = told(result).session_id

    async def restore_some(first: int) -> None:
        for number in range(first, sessions, AT_ONCE):
            result = await run(engine, "number", session=ids[number])
            report = told(result)
            assert (result.result, report.state, report.run) == (number, "restored", 2)
            await run(engine, "", session=f"s{number}", end_session=True)

    async with reopened(settings, backend, session_idle_timeout=0.05, sessions=6) as engine:
        async with anyio.create_task_group() as tasks:
            for first in range(AT_ONCE):
                tasks.start_soon(open_some, first)
        await until(lambda: engine.sessions.open == 0 and not backend.live)
        assert len(set(ids.values())) == sessions
        assert {each.state for each in await engine.sessions.listed(OWNER)} == {"put away"}
        async with anyio.create_task_group() as tasks:
            for first in range(AT_ONCE):
                tasks.start_soon(restore_some, first)
        await until(lambda: engine.sessions.open == 0 and not backend.live)
        assert await engine.sessions.listed(OWNER) == ()
        assert not engine.sessions._sessions
    assert backend.launched == 2 * sessions
    assert backend.live == set()
    assert saved_sessions(settings.state_dir) == 0
    # One connection to the database stays for the next who needs it.
    databases.forget()
    assert _descriptors() <= before
