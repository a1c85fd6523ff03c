"""Cancellation during any part of a sandbox's life leaves nothing, on every `Backend`.

Mandated by design.md's law 3.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from bridge.model import MEBIBYTE
from tests.contract.programs import FOREVER, ready, spec
from tests.contract.rig import Rig

PATIENCE = 120.0
"""For a test, on a machine that does other things too."""


async def _send(rig: Rig, reached: Callable[[], None]) -> None:
    async with ready(rig) as sandbox:
        reached()
        await sandbox.send(b"x" * (64 * MEBIBYTE))


async def _receive(rig: Rig, reached: Callable[[], None]) -> None:
    async with ready(rig) as sandbox:
        reached()
        await sandbox.receive()


async def _kill(rig: Rig, reached: Callable[[], None]) -> None:
    async with ready(rig) as sandbox:
        reached()
        await sandbox.kill()


async def _wait(rig: Rig, reached: Callable[[], None]) -> None:
    async with ready(rig) as sandbox:
        reached()
        await sandbox.wait()


async def _leave(rig: Rig, reached: Callable[[], None]) -> None:
    async with ready(rig):
        reached()


@pytest.mark.guarantee("calls-end")
@pytest.mark.parametrize("phase", [_send, _receive, _kill, _wait, _leave])
async def test_cancelled_in_a_phase_nothing_is_left(
    rig: Rig, phase: Callable[[Rig, Callable[[], None]], Coroutine[Any, Any, None]]
) -> None:
    """Cancellation during any use of a sandbox destroys it (law 3)."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            reached = anyio.Event()
            group.start_soon(phase, rig, reached.set)
            await reached.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert rig.engine.ours() == []
        async with ready(rig):
            pass


async def test_cancelled_anywhere_in_a_launch_nothing_is_left(rig: Rig) -> None:
    """Wherever a launch is interrupted, its container goes (law 3).

    Spread over a launch's usual time; `tests/sandbox/container/test_sandbox.py` meets each await
    exactly, with an engine that stands still there.
    """
    with anyio.fail_after(3 * PATIENCE):
        async with ready(rig):
            pass  # the first launch of all takes longer
        begin = anyio.current_time()
        async with rig.backend.launch(spec(FOREVER)):
            usual = anyio.current_time() - begin
        for sixth in range(7):
            with anyio.move_on_after(usual * sixth / 6):
                async with rig.backend.launch(spec(FOREVER)):
                    pass
            assert rig.engine.ours() == [], sixth
            async with ready(rig):
                pass
