"""Cancellation during any part of a sandbox's life leaves nothing, on every `Backend`.

Mandated by design.md's law 3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from bridge.model import MEBIBYTE
from bridge.sandbox.backend import Sandbox
from tests.contract.programs import FOREVER, ready, spec
from tests.contract.rig import Rig

PHASES: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "send": lambda sandbox: sandbox.send(b"x" * (64 * MEBIBYTE)),
    "receive": lambda sandbox: sandbox.receive(),
    "kill": lambda sandbox: sandbox.kill(),
    "wait": lambda sandbox: sandbox.wait(),
    "leave": lambda _: anyio.lowlevel.checkpoint(),
}


@pytest.mark.guarantee("calls-end")
@pytest.mark.parametrize("phase", PHASES)
async def test_cancelled_in_a_phase_nothing_is_left(rig: Rig, phase: str) -> None:
    reached = anyio.Event()

    async def use() -> None:
        async with ready(rig) as sandbox:
            reached.set()
            await PHASES[phase](sandbox)

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await reached.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert rig.engine.ours() == []
    async with ready(rig):
        pass


async def test_cancelled_anywhere_in_a_launch_nothing_is_left(rig: Rig) -> None:
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
