"""Sandboxes started ahead of time, each used once.

Owns when they are started, handed over and destroyed. What a sandbox is and how it becomes ready is
the opener's business: the pool holds any resource that comes as an async context manager.

Each resource has an owner task that enters and leaves its context, because a context that holds
cancel scopes may not be left by another task. Whoever claims one only tells the owner when it is
through; destruction then goes on in the background, and closing the pool waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_IDLE_SECONDS = 600.0
"""An unused sandbox is given up after this, so that a forgotten client costs nothing for long."""


@dataclass(eq=False)
class _Slot(Generic[T]):
    """One resource and what its owner task and its claimer tell each other."""

    claimed: bool
    value: T | None = None
    error: Exception | None = None
    ready: anyio.Event = field(default_factory=anyio.Event)
    handed_over: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    idling: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Reservation(Generic[T]):
    """A resource that is the holder's until the reservation ends."""

    def __init__(self, slot: _Slot[T], start: Callable[[], _Slot[T]], *, taken_over: bool) -> None:
        self._slot = slot
        self._start = start
        self._taken_over = taken_over

    async def get(self) -> T:
        """Return the resource once it is ready.

        Raises:
            Exception: Whatever opening it raised.
        """
        await self._slot.ready.wait()
        if self._slot.error is not None and self._taken_over:
            # It was started for nobody in particular, and what went wrong then may be over.
            self._taken_over = False
            self._slot = self._start()
            await self._slot.ready.wait()
        if self._slot.error is not None:
            raise self._slot.error
        await self._slot.handed_over.wait()
        if self._slot.value is None:
            message = "the pool was closed"
            raise RuntimeError(message)
        return self._slot.value

    def release(self) -> None:
        """Give it up; its owner task destroys it."""
        self._slot.released.set()
        if not self._slot.handed_over.is_set():
            self._slot.life.cancel()


class WarmPool(Generic[T]):
    """Keeps up to `size` resources ready; 0 opens each one when it is asked for.

    Nothing is opened before it is asked for: a bridge that is never used starts no sandbox.
    """

    def __init__(
        self,
        opener: Callable[[], AbstractAsyncContextManager[T]],
        *,
        size: int,
        wait_dead: Callable[[T], Awaitable[None]],
        max_idle: float = MAX_IDLE_SECONDS,
    ) -> None:
        """Make a pool.

        Args:
            opener: Opens one resource; leaving the context destroys it.
            size: How many to keep ready.
            wait_dead: Returns when an idle resource has died; cancelled when it is claimed.
            max_idle: Seconds after which an unused resource is destroyed.
        """
        self._opener = opener
        self._size = size
        self._wait_dead = wait_dead
        self._max_idle = max_idle
        self._idle: list[_Slot[T]] = []
        self._all: set[_Slot[T]] = set()
        self._tasks: TaskGroup | None = None
        self._closing = False

    def __repr__(self) -> str:
        return f"<WarmPool idle={len(self._idle)} alive={len(self._all)} size={self._size}>"

    @property
    def alive(self) -> int:
        """Resources that exist or are being opened or destroyed."""
        return len(self._all)

    async def __aenter__(self) -> WarmPool[T]:
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
        self._idle.clear()
        for slot in self._all:
            slot.life.cancel()
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            # An error of the caller's passes by: given to the task group it would come out wrapped.
            await tasks.__aexit__(None, None, None)

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[Reservation[T]]:
        """Set a resource aside, starting one if none is ready; leaving destroys it.

        Nothing is waited for on entering, so that a caller can do other work while it starts.
        """
        slot = self._take()
        taken_over = slot is not None
        start = partial(self._start, claimed=True)
        reservation = Reservation(slot or start(), start, taken_over=taken_over)
        try:
            yield reservation
        finally:
            reservation.release()

    def refill(self) -> None:
        """Start what is missing of `size`, in the background."""
        spare = sum(1 for slot in self._all if not slot.claimed and not slot.released.is_set())
        for _ in range(self._size - spare):
            if not self._closing:
                self._start(claimed=False)

    async def drain(self) -> None:
        """Destroy what waits unclaimed, and wait until it is gone."""
        waiting = [slot for slot in self._all if not slot.claimed]
        for slot in waiting:
            slot.life.cancel()
        for slot in waiting:
            await slot.gone.wait()

    def _take(self) -> _Slot[T] | None:
        """Return a slot that is the caller's from now on, a ready one or one under way, if any."""
        unclaimed = [slot for slot in self._all if not slot.claimed and not slot.released.is_set()]
        for slot in sorted(unclaimed, key=lambda slot: slot not in self._idle):
            slot.claimed = True
            slot.idling.cancel()
            if slot in self._idle:
                self._idle.remove(slot)
            return slot
        return None

    def _start(self, *, claimed: bool) -> _Slot[T]:
        if self._tasks is None:
            message = "the pool is not open"
            raise RuntimeError(message)
        slot: _Slot[T] = _Slot(claimed=claimed)
        self._all.add(slot)
        self._tasks.start_soon(self._own, slot)
        return slot

    async def _own(self, slot: _Slot[T]) -> None:
        """Enter, keep and leave one resource's context."""
        try:
            with slot.life:
                async with self._opener() as value:
                    slot.value = value
                    if not slot.claimed:
                        self._idle.append(slot)
                        slot.ready.set()
                        await self._idle_until_claimed(slot, value)
                    slot.ready.set()
                    if slot.claimed:
                        slot.handed_over.set()
                        await slot.released.wait()
        except Exception as error:
            # Handed to the claimer; when nobody claimed it yet, the next claim tries afresh.
            slot.error = error
            if slot.handed_over.is_set():
                logger.warning("a sandbox could not be destroyed cleanly: %s", error)
            elif not slot.claimed:
                logger.warning("could not start a sandbox ahead of time: %s", error)
        finally:
            if slot in self._idle:
                self._idle.remove(slot)
            self._all.discard(slot)
            slot.value = None
            slot.released.set()
            slot.ready.set()
            slot.handed_over.set()
            slot.gone.set()

    async def _idle_until_claimed(self, slot: _Slot[T], value: T) -> None:
        with anyio.move_on_after(self._max_idle), slot.idling:
            await self._wait_dead(value)
            logger.info("a waiting sandbox died; it is replaced at the next run")
        if slot in self._idle:
            self._idle.remove(slot)
        if not slot.claimed:
            # Destroying it takes a while: whoever asks meanwhile must not be given it.
            slot.released.set()
