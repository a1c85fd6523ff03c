"""What a bridge costs that no one uses: CPU time and memory, sandboxes and all."""

from __future__ import annotations

import anyio

from benchmarks.bench import Bench, BenchmarkError
from benchmarks.bridge_client import Bridge, open_bridge
from benchmarks.engines import Engine
from benchmarks.processes import (
    all_pids,
    below,
    command,
    cpu_seconds,
    parent,
    pid_namespace,
    proportional_mb,
)
from benchmarks.results import Measurement
from benchmarks.targets import CONTAINERS

SANDBOXES = 4
IDLE_SECONDS = (20.0, 3.0)
READY_SECONDS = 20.0
"""For the sandboxes to be ready; a container takes a third of a second."""

QUIET_SECONDS = 2.0
"""Between the last sandbox's being ready and the first look: what follows a start is over."""

GUEST = " -I -S -c "
"""In the command line of every sandbox's first process, whatever runs it."""


class _Watch:
    """The processes that came with a bridge.

    Args:
        before: Those that were there before it.
        engine: A container engine starts sandboxes as children of its own, so there every guest
            counts that came after the bridge. Let no one else use the engine meanwhile.
    """

    def __init__(self, bridge: Bridge, before: set[int], engine: Engine) -> None:
        self._bridge = bridge.pid
        self._before = before
        self._elsewhere = engine.name in CONTAINERS

    def processes(self) -> set[int]:
        """Return the bridge, what descends from it, and the sandboxes with what holds them."""
        new = all_pids() - self._before
        own = below(new, self._bridge) | {self._bridge}
        if not self._elsewhere:
            return own
        guests = {pid for pid in new if self._is_guest(pid)}
        # An engine's monitor is the parent of a sandbox's first process.
        monitors = {parent(pid) for pid in guests} & new
        return own | guests | monitors

    def sandboxes(self) -> int:
        """Return how many sandboxes have a guest in them."""
        own = pid_namespace(self._bridge)
        found = {pid_namespace(pid) for pid in self.processes() if self._is_guest(pid)}
        return len(found - {own, ""})

    @staticmethod
    def _is_guest(pid: int) -> bool:
        return GUEST in command(pid)


async def idle(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure a bridge that has four sandboxes ready and nothing to do."""
    before = all_pids()
    async with open_bridge(bench, engine, MCP_BRIDGE_WARM=str(SANDBOXES)) as bridge:
        watch = _Watch(bridge, before, engine)
        # Enough at once that a pool which follows demand keeps as many ready as it may.
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(SANDBOXES):
                    tasks.start_soon(bridge.run)
        ready = await _until_ready(watch)
        await anyio.sleep(QUIET_SECONDS)
        seconds = bench.count(int(IDLE_SECONDS[0]), int(IDLE_SECONDS[1]))
        pids = watch.processes()
        used = {pid: cpu_seconds(pid) for pid in pids}
        await anyio.sleep(seconds)
        spent = sum(max(0.0, cpu_seconds(pid) - at) for pid, at in used.items())
        own_mb = proportional_mb(bridge.pid)
        all_mb = sum(proportional_mb(pid) for pid in pids)
        still = watch.sandboxes()
    if ready < SANDBOXES:
        message = (
            f"Only {ready} of {SANDBOXES} sandboxes became ready in {READY_SECONDS:g} s; "
            "nothing says what an idle bridge with four would use."
        )
        raise BenchmarkError(message)
    return [
        Measurement(
            row="idle-cpu",
            engine=engine.name,
            figure=spent / seconds * 100,
            detail=f"{still} sandboxes, {len(pids)} processes, over {seconds} s",
        ),
        Measurement(
            row="idle-memory", engine=engine.name, figure=all_mb, detail="shared pages in part"
        ),
        Measurement(row="idle-own", engine=engine.name, figure=own_mb),
    ]


async def _until_ready(watch: _Watch) -> int:
    """Wait until the sandboxes are there; return how many there are."""
    with anyio.move_on_after(READY_SECONDS):
        # They are looked for from outside, which receives no list of them.
        while watch.sandboxes() != SANDBOXES:  # noqa: ASYNC110
            await anyio.sleep(0.2)
    return watch.sandboxes()
