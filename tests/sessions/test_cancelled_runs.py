"""Runs of sessions whose clients go away at any moment."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.settings import Settings
from tests.fakes.backend import FakeBackend
from tests.session_rig import reopened, run

PROGRAMS = ("1", "import time; time.sleep(0.2)", "import os; os._exit(1)", "while True: pass")
PATIENCE = (0, 0.01, 0.05, 0.1, 0.3, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_go_away_at_any_moment_leave_sessions_that_work(
    settings: Settings, backend: FakeBackend, seed: int
) -> None:
    chance = random.Random(seed)
    async with reopened(settings, backend, sessions=2, runs=2) as engine:

        async def leave_early() -> None:
            await anyio.sleep(chance.random() * 2)
            name, code = chance.choice("abc"), chance.choice(PROGRAMS)
            with anyio.move_on_after(chance.choice(PATIENCE)):
                # All places may be in use.
                with suppress(BridgeError):
                    ends = chance.random() < 0.1
                    await run(engine, code, session=name, timeout=2, end_session=ends)

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(leave_early)
        for name in "abc":
            assert (await run(engine, "41 + 1", session=name)).result == 42
        assert (engine.running_runs.count, engine.queue.waiting) == (0, 0)
