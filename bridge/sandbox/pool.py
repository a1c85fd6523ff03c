"""The warm pool of sandboxes started ahead of time, and the queue of the runs that use them.

Each sandbox serves one run. An owner task enters and leaves its context, because another task may
not leave a context with cancel scopes. Pure functions decide how many wait and when one starts.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from bridge.errors import BridgeError
from bridge.event_loop import count_metric

SETTLE_SECONDS = 0.025
"""Quiet time before the pool starts or destroys a sandbox, so that runs do not compete with it."""


def target_size(claims: Sequence[float], now: float, *, most: int, start_seconds: float) -> int:
    """Return how many sandboxes should wait, from the ascending times of `claims` in seconds.

    An order-up-to (base-stock) policy (Zipkin, Foundations of Inventory Management, 2000, chapter
    6): the stock covers the largest recent demand of one lead time.
    """
    # An idle client costs nothing after ten minutes.
    if not claims or now - claims[-1] >= 600.0:
        return 0
    # Starts happen one after another. Runs closer together than half a second are one burst,
    # however fast sandboxes start.
    lead = max(0.5, 2 * start_seconds)
    # Until the next question of a conversation.
    recent = claims[bisect_left(claims, now - 120.0) :]
    first = largest = 0
    for last, claim in enumerate(recent):
        while claim - recent[first] >= lead:
            first += 1
        largest = max(largest, last - first + 1)
    # One as long as the client may return.
    return min(most, max(1, largest))


class PoolDecision(NamedTuple):
    """How many sandboxes to start and destroy now, and seconds until the next decision."""

    start: int = 0
    drop: int = 0
    again: float | None = None


def decide(
    *,
    wanted: int,
    waiting: int,
    starting: int,
    awaited: int,
    running: int,
    quiet: float,
    cores: int,
) -> PoolDecision:
    """Return what to start or destroy, without starving running programs.

    Nothing starts ahead of time while a run waits for a start (`awaited`). `quiet` are the seconds
    since a run began, got its sandbox or ended.
    """
    drop = max(0, waiting - wanted)
    missing = wanted - waiting - starting
    room = max(1, cores // 2) - starting
    if missing <= 0 or room <= 0 or awaited:
        return PoolDecision(drop=drop)
    # A start takes a large share of a small machine. Short programs have ended by then, and long
    # ones lose less than the next run would by a cold start.
    left = 0.25 - quiet if running > 0 and cores < 4 else 0.0
    if left > 0:
        return PoolDecision(drop=drop, again=left)
    return PoolDecision(start=min(missing, room), drop=drop)


class PoolReport(NamedTuple):
    """A pool's counts: its sandboxes now, claims by warmth, deaths and failed starts ahead."""

    alive: int  # Also those that are being opened, used or destroyed.
    most: int
    wanted: int
    waiting: int
    starting: int
    warm: int = 0
    half: int = 0
    cold: int = 0
    died: int = 0
    failed: int = 0


logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Acquire = Callable[[], Callable[[], None]]
"""Acquires something and returns the function that releases it."""


def acquire_nothing() -> Callable[[], None]:
    return lambda: None


@dataclass(eq=False)
class _Resource(Generic[K, T]):
    """One resource, and the signals between its owner task and its claimer."""

    key: K
    claimed: bool
    value: T | None = None
    error: Exception | None = None
    handed_over: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    idling: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    on_gone: Callable[[], None] = field(default_factory=acquire_nothing)
    on_ready: Callable[[], object] = acquire_nothing

    @property
    def state(self) -> Literal["starting", "waiting", "awaited", "running", "ending"]:
        """Unclaimed resources are starting or waiting; claimed ones awaited, running or ending."""
        if self.released.is_set():
            return "ending"
        if self.claimed:
            return "running" if self.handed_over.is_set() else "awaited"
        return "starting" if self.value is None else "waiting"


class Reservation(Generic[T]):
    """A claimed resource, until the reservation ends."""

    def __init__(
        self, resource: _Resource[K, T], start: Callable[[], _Resource[K, T]], *, ahead: bool
    ) -> None:
        self._resource = resource
        self._start = start
        self._ahead = ahead

    async def get(self) -> T:
        await self._resource.handed_over.wait()
        if self._resource.error is not None and self._ahead:
            # The cause may be gone, so start one for the claim.
            self._ahead = False
            self._resource = self._start()
            await self._resource.handed_over.wait()
        if self._resource.error is not None:
            raise self._resource.error
        if self._resource.value is None:
            raise RuntimeError("the pool was closed")
        return self._resource.value

    def release(self, on_gone: Callable[[], None]) -> None:
        """Return it; its owner task destroys it, and then calls `on_gone`."""
        if self._resource.gone.is_set():
            on_gone()
        self._resource.on_gone = on_gone
        self._resource.released.set()
        if not self._resource.handed_over.is_set():
            self._resource.life.cancel()


class WarmPool(Generic[K, T]):
    """Keeps resources ready, as many as recent demand requires; with 0 it opens each on demand.

    It opens nothing before the first claim, so an unused bridge starts no sandbox. Waiting
    resources have the key of the last claim and serve only claims with that key. `wait_dead`
    returns when an idle resource has died.
    """

    def __init__(
        self,
        opener: Callable[[K], AbstractAsyncContextManager[T]],
        *,
        most: int,
        wait_dead: Callable[[T], Awaitable[None]],
        cores: int | None = None,
    ) -> None:
        self._opener = opener
        self._most = most
        self._wait_dead = wait_dead
        self._cores = cores or os.cpu_count() or 1
        self._all: list[_Resource[K, T]] = []  # The oldest first.
        self._tasks: TaskGroup | None = None
        self._key: K | None = None
        self._claims: deque[float] = deque(maxlen=64)  # more than the size of any pool
        self._counts: Counter[str] = Counter()
        self._active_at = 0.0
        self._start_seconds = 0.0
        # Set when starting ahead of time failed or is useless; the next claim resets it.
        self._resting = False
        self._changed = anyio.Event()

    @property
    def report(self) -> PoolReport:
        return PoolReport(
            alive=len(self._all),
            most=self._most,
            wanted=self._target(),
            waiting=len(self._in("waiting")),
            starting=len(self._in("starting")),
            **self._counts,
        )

    async def __aenter__(self) -> WarmPool[K, T]:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        if self._most > 0:
            self._tasks.start_soon(self._keep)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._claims and self._most > 0:
            logger.info("the pool at its end: %s", self.report)
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            tasks.cancel_scope.cancel()
            # The task group would wrap the caller's error, so it does not get it.
            await tasks.__aexit__(None, None, None)

    @asynccontextmanager
    async def reserve(
        self,
        key: K,
        *,
        fresh: bool = False,
        keep: Acquire = acquire_nothing,
        started: Callable[[], object] = acquire_nothing,
    ) -> AsyncIterator[Reservation[T]]:
        """Claim a resource without waiting, starting one if none is ready; leaving destroys it.

        Args:
            fresh: Whether to start a new one and destroy the waiting ones.
            keep: Called now; its result is called once the resource is destroyed.
            started: Called once the resource is ready, or cannot be.
        """
        if fresh:
            self._discard(self._in("starting", "waiting"))
        start = partial(self._start, key, claimed=True)
        ready = [resource for resource in self._in("waiting") if resource.key == key]
        begun = [resource for resource in self._in("starting") if resource.key == key]
        if found := ready or begun:
            found[0].claimed = True
            found[0].idling.cancel()
        resource = found[0] if found else start()
        resource.on_ready = started
        reservation = Reservation(resource, start, ahead=bool(found))
        if not fresh:
            self._counts["warm" if ready else "half" if begun else "cold"] += 1
            self._claims.append(anyio.current_time())
        self._key, self._resting = key, False
        self._note_activity()
        on_gone = keep()
        try:
            yield reservation
        finally:
            reservation.release(on_gone)
            self._note_activity()

    async def drain(self) -> None:
        """Destroy all unclaimed resources and wait for that; the next claim starts a new one."""
        self._resting = True
        waiting = self._in("starting", "waiting")
        self._discard(waiting)
        for resource in waiting:
            await resource.gone.wait()

    def _in(self, *states: str) -> list[_Resource[K, T]]:
        return [resource for resource in self._all if resource.state in states]

    @staticmethod
    def _discard(resources: list[_Resource[K, T]]) -> None:
        """Destroy unclaimed resources; from now on they cannot be claimed."""
        for resource in resources:
            resource.released.set()
            resource.life.cancel()

    def _start(self, key: K, *, claimed: bool) -> _Resource[K, T]:
        if self._tasks is None:
            raise RuntimeError("the pool is not open")
        resource: _Resource[K, T] = _Resource(key=key, claimed=claimed)
        self._all.append(resource)
        self._tasks.start_soon(self._own, resource)
        return resource

    def _note_activity(self) -> None:
        """Record that a run began, got its resource or ended, for `_adjust`."""
        self._active_at = anyio.current_time()
        self._changed.set()

    def _target(self) -> int:
        claims, now = tuple(self._claims), anyio.current_time()
        return target_size(claims, now, most=self._most, start_seconds=self._start_seconds)

    async def _keep(self) -> None:
        """Keep the wanted number waiting until the pool is closed."""
        while True:
            self._changed = anyio.Event()
            with anyio.move_on_after(self._adjust()):
                await self._changed.wait()

    def _adjust(self) -> float | None:
        """Start and destroy resources as decided; return the seconds until the next decision."""
        key = self._key
        if key is None:
            return None
        quiet = anyio.current_time() - self._active_at
        if quiet < SETTLE_SECONDS:
            return SETTLE_SECONDS - quiet
        free = self._in("starting", "waiting")
        self._discard([resource for resource in free if resource.key != key])
        waiting = self._in("waiting")
        decision = decide(
            wanted=self._target(),
            waiting=len(waiting),
            starting=len(self._in("starting")),
            awaited=len(self._in("awaited")),
            running=len(self._in("running")),
            quiet=quiet,
            cores=self._cores,
        )
        self._discard(waiting[: decision.drop])
        if not self._resting:
            for _ in range(decision.start):
                self._start(key, claimed=False)
            if decision.again is not None:
                return decision.again
        # While any waits: whether fewer should.
        return 30.0 if self._in("waiting") else None

    async def _own(self, resource: _Resource[K, T]) -> None:
        """Enter, keep and leave one resource's context."""
        began = anyio.current_time()
        try:
            with resource.life:
                async with self._opener(resource.key) as value:
                    resource.value = value
                    self._start_seconds = anyio.current_time() - began
                    warm = "no" if resource.claimed else "yes"
                    count_metric("sandbox_start_seconds", self._start_seconds, warm=warm)
                    if resource.state == "waiting":
                        self._changed.set()
                        await self._idle_until_claimed(resource, value)
                    if resource.claimed:
                        resource.handed_over.set()
                        resource.on_ready()
                        self._note_activity()
                        await resource.released.wait()
                        # Destroying it takes CPU time, which the run's answer should get first.
                        await anyio.sleep(SETTLE_SECONDS)
        except Exception as error:
            # The claimer raises it; if there is none yet, the next claim starts another.
            resource.error = error
            if resource.handed_over.is_set():
                logger.warning("a sandbox could not be destroyed cleanly: %s", error)
            elif not resource.claimed:
                self._resting = True
                self._counts["failed"] += 1
                logger.warning("could not start a sandbox ahead of time: %s", error)
        finally:
            self._all.remove(resource)
            resource.value = None
            resource.released.set()
            resource.handed_over.set()
            resource.gone.set()
            resource.on_ready()
            resource.on_gone()
            self._changed.set()

    async def _idle_until_claimed(self, resource: _Resource[K, T], value: T) -> None:
        with resource.idling:
            await self._wait_dead(value)
            logger.info("a waiting sandbox died; it is replaced at the next run")
            # Its killer may be intended or still running, so nothing replaces it now.
            self._resting = True
            self._counts["died"] += 1
        if not resource.claimed:
            # Destroying it takes time; it must not be claimed meanwhile.
            resource.released.set()


MAX_WAITING = 400  # Waiting runs. Each has its program in memory.
MAX_WAITING_OF_OWNER = 100  # Waiting runs of one caller, so that none fills the queue.
MOST_RUNS = 32  # Highest default concurrency. Most runs wait for their servers.
CLUSTER_RUNS = 64  # Default concurrency on a cluster whose quota is unknown.
CLUSTER_STARTS = 8  # Runs whose pods start at once. A node that starts many at once is slow.

WAIT_UNTIL: ContextVar[float] = ContextVar("wait_until", default=0.0)
"""Until when the current run waits for room, by `anyio.current_time`; 0 outside of runs."""

PositionListener = Callable[[int | None], None]
"""Called with the number of runs ahead of a waiting run, and with None once it has its slot.

A run that gets a slot at once calls it never."""


@dataclass(eq=False)
class RunSlot:
    """A run's place in the queue, and then its slot while it has holders."""

    owner: str
    on_position: PositionListener
    changed: Callable[[], None]
    starting: bool  # Whether its sandbox has yet to start.
    granted: anyio.Event = field(default_factory=anyio.Event)
    holders: int = 1

    def keep(self) -> Callable[[], None]:
        """Hold the slot for longer, until the returned function is called."""
        self.holders += 1
        return self.release

    def release(self) -> None:
        self.holders -= 1
        self.changed()

    def end_start(self) -> None:
        """Report that the run's sandbox has started, or failed to."""
        self.starting = False
        self.changed()


class RunQueue:
    """The slots for concurrent runs, and the fair queue for a slot.

    Callers take turns; each caller's runs keep their order. A run holds its slot until its sandbox
    is gone, also while it waits for a person's answer.

    Args:
        wait_seconds: How long a run waits, for its slot and for room in a cluster together.
        capacity: Returns how many runs a cluster has room for, or None; absent without a cluster.
    """

    def __init__(
        self,
        slots: int,
        wait_seconds: float = 120.0,
        capacity: Callable[[], int | None] | None = None,
    ) -> None:
        self.slots = slots
        self._wait_seconds = wait_seconds
        self._capacity = capacity or (lambda: None)
        self._starts = CLUSTER_STARTS if capacity else slots
        self._running: list[RunSlot] = []
        # In the order of the owners' turns.
        self._waiting: dict[str, deque[RunSlot]] = {}

    @property
    def taken(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of runs that wait for a slot, or for their sandbox to start."""
        return self._starting + sum(len(tickets) for tickets in self._waiting.values())

    @property
    def _starting(self) -> int:
        return sum(slot.starting for slot in self._running)

    def begin_wait(self) -> None:
        """Bound the time that the current run waits from now on."""
        WAIT_UNTIL.set(anyio.current_time() + self._wait_seconds)

    @asynccontextmanager
    async def slot(
        self, owner: str, on_position: PositionListener, *, starts: bool = False
    ) -> AsyncIterator[RunSlot]:
        """Take a slot while this context is open, and until no one keeps it.

        If the run `starts` a sandbox, `end_start` reports the end of that.

        Raises:
            BridgeError: Too many runs wait, or this run has waited too long.
        """
        began = anyio.current_time()
        self.begin_wait()
        slot = RunSlot(owner, on_position, self._grant, starts)
        if self._is_free_for(slot):
            self._running.append(slot)
        else:
            await self._wait(slot)
        count_metric("queue_seconds", anyio.current_time() - began)
        try:
            yield slot
        finally:
            slot.starting = False
            slot.release()

    async def _wait(self, ticket: RunSlot) -> None:
        if self.waiting >= MAX_WAITING:
            raise self._overload_error(f"{self.waiting} more wait already")
        own = self._waiting.get(ticket.owner, ())
        if len(own) >= MAX_WAITING_OF_OWNER:
            raise self._overload_error(f"{len(own)} more of yours wait already")
        self._waiting.setdefault(ticket.owner, deque()).append(ticket)
        self._report_positions()
        try:
            with anyio.move_on_after(self._wait_seconds):
                await ticket.granted.wait()
        except BaseException:
            self._leave(ticket)
            raise
        if not ticket.granted.is_set():
            self._leave(ticket)
            why = f"this one has waited {self._wait_seconds:g} s; {self.waiting} others wait too"
            raise self._overload_error(why)

    def _leave(self, ticket: RunSlot) -> None:
        """Remove a run from the queue, or pass on the slot that it was just granted."""
        if ticket.granted.is_set():
            ticket.release()
            return
        self._waiting[ticket.owner].remove(ticket)
        self._report_positions()

    def _is_free_for(self, ticket: RunSlot) -> bool:
        free = self.taken < (self._capacity() or self.slots)
        return free and (not ticket.starting or self._starting < self._starts)

    def _grant(self) -> None:
        self._running = [slot for slot in self._running if slot.holders]
        while ticket := next(filter(self._is_free_for, self._in_turn()), None):
            # The owner's next turn comes after those of all others.
            self._waiting[ticket.owner] = tickets = self._waiting.pop(ticket.owner)
            tickets.remove(ticket)
            self._running.append(ticket)
            ticket.granted.set()
            ticket.on_position(None)
            self._report_positions()

    def _in_turn(self) -> Iterator[RunSlot]:
        # In each round, one run of each owner gets a slot.
        return filter(None, chain.from_iterable(zip_longest(*self._waiting.values())))

    def _report_positions(self) -> None:
        self._waiting = {owner: tickets for owner, tickets in self._waiting.items() if tickets}
        for ahead, ticket in enumerate(self._in_turn()):
            ticket.on_position(ahead)

    def _overload_error(self, why: str) -> BridgeError:
        return BridgeError(
            f"As many runs are under way as there may be at once ({self.taken}), and {why}.",
            remedy="Nothing was run. Wait for results of yours, or try again later; put several "
            "steps into one program. MCP_BRIDGE_RUNS sets how many may run at once.",
            code="overloaded",
        )


def default_runs(cores: int, memory: int | None, run_memory: int) -> int:
    """Return the default number of concurrent runs; both memories in bytes, None if unknown."""
    found = 4 * cores
    if memory is not None:
        found = min(found, memory // run_memory)
    return max(2, min(MOST_RUNS, found))


def usable_memory() -> int | None:
    """Return the bytes of memory that this process may use; None if unknown."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    try:
        # "max" where it has no limit of its own.
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return found
