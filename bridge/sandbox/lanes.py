"""Sandboxes that serve many runs, one after another.

Owns when one is opened, who has it, whether it may serve again, and when it has served long enough.
What a lane is and how it gets ready again is the lane's own business: the pool holds whatever has
`clean` and `renew`, and comes as an async context manager.

Each lane has an owner task that enters and leaves its context, because a context that holds cancel
scopes may not be left by another task. Whoever claims one only tells the owner when it is through.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from bridge.errors import LaneRefusedError, SandboxError

logger = logging.getLogger(__name__)

MAX_RUNS = 250
"""Runs of one lane; then another takes its place, with other addresses and another hash seed."""

MAX_AGE_SECONDS = 600.0
"""Age at which a lane is given up, used or not."""

MAX_LANES = 9
"""Lanes at a time: eight in use and one that gets ready meanwhile. Each takes about 25 MB."""

SPARE_LANES = 1
"""Lanes beyond those in use, so that a run need not wait until the last one's is ready again."""

RENEW_SECONDS = 5.0
"""For a lane to be empty and ready again: 10 ms usually."""

WAIT_SECONDS = 5.0
"""A claim waits this long where all lanes are in use, and then does without."""

RETRY_SECONDS = 300.0
"""After a lane could not be opened, before it is tried again."""


class Lane(Protocol):
    """What the pool needs of a lane."""

    def clean(self) -> bool:
        """Tell whether its last run ended as it should, so that it may serve again."""
        ...

    async def renew(self) -> None:
        """Return once nothing is left of the last run and the next can begin.

        Raises:
            SandboxError: That cannot be had.
        """
        ...

    async def wait_dead(self) -> None:
        """Return when it has died while it waited; cancelled when it is claimed."""
        ...


K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Lane)


@dataclass(eq=False)
class _Slot(Generic[K, L]):
    """One lane and what its owner task and its claimers tell each other."""

    key: K
    value: L | None = None
    held: bool = False
    over: bool = False
    born: float = field(default_factory=time.monotonic)
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    idling: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    handed_over: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)


class LanePool(Generic[K, L]):
    """Hands out lanes by a key; no two keys ever share one.

    Args:
        opener: Opens a lane; leaving the context destroys it.
        max_runs, max_age, most: See the constants.
    """

    def __init__(
        self,
        opener: Callable[[K], AbstractAsyncContextManager[L]],
        *,
        max_runs: int = MAX_RUNS,
        max_age: float = MAX_AGE_SECONDS,
        most: int = MAX_LANES,
        spare: int = SPARE_LANES,
        wait: float = WAIT_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        self._opener = opener
        self._max_runs = max_runs
        self._max_age = max_age
        self._most = most
        self._spare = spare
        self._wait = wait
        self._retry = retry
        self._all: set[_Slot[K, L]] = set()
        self._idle: list[_Slot[K, L]] = []
        self._waiting: dict[K, int] = {}
        self._changed = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._closing = False
        self._refused: dict[K, tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<LanePool idle={len(self._idle)} alive={len(self._all)}>"

    @property
    def alive(self) -> int:
        """Lanes that exist or are being opened or destroyed."""
        return len(self._all)

    @property
    def idle(self) -> int:
        """Lanes that are ready for a run."""
        return len(self._idle)

    async def __aenter__(self) -> LanePool[K, L]:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing = True
        for slot in self._all:
            slot.life.cancel()
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            # An error of the caller's passes by: given to the task group it would come out wrapped.
            await tasks.__aexit__(None, None, None)

    def prepare(self, key: K) -> None:
        """See that there will be a lane for somebody who is going to claim one."""
        with suppress(LaneRefusedError):
            self._check_refused(key, time.monotonic())
            self._grow(key, spare=1)

    async def drain(self) -> None:
        """Destroy the lanes that nobody holds, and wait until they are gone."""
        leaving = [slot for slot in self._all if not slot.held]
        for slot in leaving:
            slot.life.cancel()
        while any(slot in self._all for slot in leaving):
            await self._changed.wait()

    @asynccontextmanager
    async def claim(self, key: K) -> AsyncIterator[L]:
        """Hold a lane for one run; what becomes of it afterwards is decided by how that ended.

        Raises:
            LaneRefusedError: On entering, when none can be had.
        """
        slot = await self._take(key)
        try:
            if slot.value is None:
                message = "The lane had died."
                raise LaneRefusedError(message)
            yield slot.value
        except BaseException:
            # Whatever it was, the run did not end as it should.
            slot.over = True
            raise
        finally:
            # At once, so that who comes next waits for this lane and starts no other.
            slot.held = False
            slot.released.set()

    async def _take(self, key: K) -> _Slot[K, L]:
        found: _Slot[K, L] | None = None
        since = time.monotonic()
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            with anyio.move_on_after(self._wait):
                while True:
                    found = next((slot for slot in self._idle if slot.key == key), None)
                    if found is not None:
                        self._idle.remove(found)
                        found.held = True
                        found.idling.cancel()
                        break
                    self._check_refused(key, since)
                    self._grow(key)
                    await self._changed.wait()
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if found is None:
            message = "every lane was in use"
            raise LaneRefusedError(message)
        try:
            self._grow(key, self._spare)
            await found.handed_over.wait()
        except BaseException:
            found.over = True
            found.held = False
            found.released.set()
            raise
        return found

    def _check_refused(self, key: K, since: float) -> None:
        if key not in self._refused:
            return
        when, why = self._refused[key]
        if when >= since or time.monotonic() < when + self._retry:
            raise LaneRefusedError(why)

    def _grow(self, key: K, spare: int = 0) -> None:
        """Start lanes for who waits and some to spare, as far as there may be so many."""
        if self._tasks is None or self._closing:
            message = "the bridge is closing"
            raise LaneRefusedError(message)
        mine = [slot for slot in self._all if slot.key == key and not slot.over]
        held = sum(slot.held for slot in mine)
        wanted = held + self._waiting.get(key, 0) + spare - len(mine)
        for _ in range(wanted):
            if len(self._all) >= self._most and not self._give_up_another(key):
                return
            slot = _Slot[K, L](key)
            self._all.add(slot)
            self._tasks.start_soon(self._own, slot)

    def _give_up_another(self, key: K) -> bool:
        """End an idle lane of another key; tell whether that makes room already."""
        for slot in self._idle:
            if slot.key != key:
                slot.life.cancel()
                break
        return False

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _own(self, slot: _Slot[K, L]) -> None:
        """Enter, keep and leave one lane's context."""
        try:
            with slot.life:
                async with self._opener(slot.key) as lane:
                    slot.value = lane
                    self._refused.pop(slot.key, None)
                    for _ in range(self._max_runs - 1):
                        if not await self._serve_one(slot, lane) or not await _renewed(lane):
                            break
                    else:
                        await self._serve_one(slot, lane)
                    slot.over = True
        except SandboxError as error:
            logger.info("a lane could not be had, or was lost: %s", error)
            if slot.value is None:
                self._refused[slot.key] = (time.monotonic(), error.message)
        except Exception:
            logger.exception("a lane failed in a way nobody foresaw")
            if slot.value is None:
                why = "it failed in a way nobody foresaw; see the log"
                self._refused[slot.key] = (time.monotonic(), why)
        finally:
            if slot in self._idle:
                self._idle.remove(slot)
            self._all.discard(slot)
            slot.value = None
            slot.handed_over.set()
            self._tell()

    async def _serve_one(self, slot: _Slot[K, L], lane: L) -> bool:
        """Wait for a claim and its end; return whether the lane may serve again."""
        slot.idling, slot.handed_over = anyio.CancelScope(), anyio.Event()
        slot.released = anyio.Event()
        left = self._max_age - (time.monotonic() - slot.born)
        if left <= 0:
            return False
        self._idle.append(slot)
        self._tell()
        with anyio.move_on_after(left), slot.idling:
            await lane.wait_dead()
        if slot in self._idle:
            self._idle.remove(slot)
        if not slot.held:
            return False
        slot.handed_over.set()
        await slot.released.wait()
        return not slot.over and lane.clean()


async def _renewed(lane: Lane) -> bool:
    with anyio.move_on_after(RENEW_SECONDS) as patience:
        await lane.renew()
    return not patience.cancelled_caught
