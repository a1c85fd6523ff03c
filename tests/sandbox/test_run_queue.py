"""How many runs there may be at once, and whose turn it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.sandbox import pool
from bridge.sandbox.pool import RunQueue, RunSlot, default_runs, usable_memory
from tests.waiting import until

GIB = 1024**3
MIB = 1024**2

pytestmark = pytest.mark.guarantee("runs-at-once")


class Crowd:
    def __init__(self, queue: RunQueue, starts: bool) -> None:
        self.queue, self.starts = queue, starts
        self.slots: dict[str, RunSlot] = {}
        self.began: list[str] = []
        self.told: dict[str, list[int | None]] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}
        self.errors: list[BridgeError] = []
        self._ends: dict[str, anyio.Event] = {}

    async def run(self, name: str) -> None:
        self._ends[name] = anyio.Event()
        told = self.told.setdefault(name, [])
        with anyio.CancelScope() as self.scopes[name]:
            try:
                asked = self.queue.slot(name[0], told.append, starts=self.starts)
                async with asked as self.slots[name]:
                    self.began.append(name)
                    await self._ends[name].wait()
            except BridgeError as error:
                self.errors.append(error)

    def end(self, name: str) -> None:
        self._ends[name].set()


@asynccontextmanager
async def _crowd(queue: RunQueue, *names: str, starts: bool = False) -> AsyncIterator[Crowd]:
    crowd = Crowd(queue, starts)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(crowd.run, name)
            await until(lambda: len(crowd.told) == len(names))
            await until(lambda: bool(crowd.began))
            yield crowd
            tasks.cancel_scope.cancel()
    assert (queue.taken, queue.waiting) == (0, 0)


async def test_callers_have_turns_and_each_callers_runs_their_order() -> None:
    async with _crowd(RunQueue(1), "a0", "a1", "a2", "a3", "b1", "b2", "c1") as crowd:
        for number in range(6):
            crowd.end(crowd.began[-1])
            await until(lambda count=number + 2: len(crowd.began) == count)  # type: ignore[misc]
    assert crowd.began == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]


async def test_there_are_never_more_at_once_than_places() -> None:
    async with _crowd(RunQueue(3), *(f"a{number}" for number in range(100))) as crowd:
        assert crowd.began == ["a0", "a1", "a2"]
        crowd.end("a1")
        await until(lambda: len(crowd.began) == 4)
        assert (crowd.queue.taken, crowd.queue.waiting) == (3, 96)


async def test_sandboxes_that_start_are_few_and_fairly_chosen_and_wait_for_each_other_alone() -> (
    None
):
    queue = RunQueue(20, capacity=lambda: 12)
    async with _crowd(queue, *(f"a{number}" for number in range(20)), "b1", starts=True) as crowd:
        assert (crowd.began, queue.waiting) == ([f"a{number}" for number in range(8)], 21)
        async with queue.slot("session", lambda ahead: None):
            assert queue.taken == 9  # It starts nothing.
        crowd.slots["a3"].end_start()
        assert queue.waiting == 20
        crowd.slots["a3"].end_start()
        await until(lambda: len(crowd.began) == 9)
        # A run whose sandbox failed leaves its place, too. The other caller's turn is next.
        crowd.end("a0")
        await until(lambda: crowd.began[8:] == ["a8", "b1"])
        for name in list(crowd.began):
            crowd.slots[name].end_start()
        await until(lambda: queue.taken == 12)
        assert queue.waiting == 21 - 13 + 3


async def test_a_run_that_waits_is_told_how_many_are_ahead() -> None:
    async with _crowd(RunQueue(1), "a0", "a1", "a2", "b1") as crowd:
        assert crowd.told["a0"] == []
        assert crowd.told["a2"][0] == 1
        # The other caller's came later, and comes first.
        assert crowd.told["a2"][-1] == 2
        assert crowd.told["b1"] == [1]
        crowd.end("a0")
        await until(lambda: crowd.began == ["a0", "a1"])
        assert crowd.told["a1"][-1] is None
        assert (crowd.told["b1"][-1], crowd.told["a2"][-1]) == (0, 1)


async def test_a_run_that_is_cancelled_leaves_the_queue() -> None:
    async with _crowd(RunQueue(1), "a0", "a1", "a2") as crowd:
        crowd.scopes["a1"].cancel()
        await until(lambda: crowd.queue.waiting == 1)
        assert crowd.told["a2"][-1] == 0
        crowd.end("a0")
        await until(lambda: crowd.began == ["a0", "a2"])


async def test_a_place_given_to_a_run_that_is_cancelled_at_that_moment_is_anothers() -> None:
    async with _crowd(RunQueue(1), "a0", "a1", "a2") as crowd:
        crowd.end("a0")
        # Before it could run: its place was given to it when the other left.
        await until(lambda: crowd.told["a1"][-1] is None or "a1" in crowd.began)
        crowd.scopes["a1"].cancel()
        await until(lambda: "a2" in crowd.began)
        assert crowd.queue.taken == 1


async def test_a_queue_that_is_full_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "MAX_WAITING_OF_OWNER", 2)
    monkeypatch.setattr(pool, "MAX_WAITING", 3)
    async with _crowd(RunQueue(1), "a0", "a1", "a2", "a3", "b1", "b2") as crowd:
        mine, others = crowd.errors
        assert mine.code == "overloaded"
        assert "at once (1), and 2 more of yours wait already." in mine.message
        assert "3 more wait already" in others.message
        for words in ("Nothing was run", "try again later", "MCP_BRIDGE_RUNS"):
            assert words in mine.remedy


async def test_no_one_waits_for_ever() -> None:
    async with _crowd(RunQueue(1, 0.01), "a0", "a1") as crowd:
        await until(lambda: bool(crowd.errors))
        assert "has waited 0.01 s" in crowd.errors[0].message
        assert crowd.queue.waiting == 0


def test_the_default_follows_cores_and_memory() -> None:
    machines = [(2, 16 * GIB), (2, 2 * GIB), (1, GIB // 2), (64, 512 * GIB), (4, None)]
    runs = [default_runs(cores, memory, 512 * MIB) for cores, memory in machines]
    assert runs == [8, 4, 2, 32, 16]
    assert (usable_memory() or 0) > 64 * MIB
