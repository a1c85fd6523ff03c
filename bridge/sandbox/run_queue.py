"""The slots for concurrent runs, and the fair queue for a slot.

Callers take turns; each caller's runs keep their order. A run holds its slot until its sandbox is
gone, also while it waits for a person's answer.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

import anyio

from bridge.errors import BridgeError

MAX_WAITING = 400  # Waiting runs. Each has its program in memory.
MAX_WAITING_OF_OWNER = 100  # Waiting runs of one caller, so that none fills the queue.
MOST_RUNS = 32  # Highest default concurrency. Most runs wait for their servers.

PositionListener = Callable[[int | None], None]
"""Called with the number of runs ahead of a waiting run, and with None once it has its slot."""


@dataclass(eq=False)
class _Ticket:
    owner: str
    on_position: PositionListener
    granted: anyio.Event = field(default_factory=anyio.Event)


class RunSlot:
    """One run's slot, which is free once all its holders have released it."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._kept = 0

    def keep(self) -> Callable[[], None]:
        """Hold the slot until the returned function is called."""
        self._kept += 1
        return self._let_go

    def _let_go(self) -> None:
        self._kept -= 1
        if not self._kept:
            self._free()


class RunQueue:
    """The run slots and their queue.

    Args:
        places: The number of slots.

    Attributes:
        taken: The number of taken slots.
    """

    def __init__(self, places: int, wait_seconds: float = 120.0) -> None:
        self._places = places
        self._wait_seconds = wait_seconds
        self.taken = 0
        # In the order of the owners' turns.
        self._waiting: dict[str, deque[_Ticket]] = {}

    @property
    def waiting(self) -> int:
        return sum(len(tickets) for tickets in self._waiting.values())

    @asynccontextmanager
    async def slot(self, owner: str, on_position: PositionListener) -> AsyncIterator[RunSlot]:
        """Take a slot while this context is open, and while anything keeps the slot.

        Args:
            on_position: Called only if the run has to wait.

        Raises:
            BridgeError: Too many runs wait, or this run has waited too long.
        """
        if self.taken < self._places:
            self.taken += 1
        else:
            await self._wait(_Ticket(owner, on_position))
        place = RunSlot(self._give_on)
        let_go = place.keep()
        try:
            yield place
        finally:
            let_go()

    async def _wait(self, ticket: _Ticket) -> None:
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

    def _leave(self, ticket: _Ticket) -> None:
        """Remove a run from the queue, or pass on the slot that it was just granted."""
        if ticket.granted.is_set():
            self._give_on()
            return
        self._waiting[ticket.owner].remove(ticket)
        self._report_positions()

    def _give_on(self) -> None:
        """Grant a free slot to the next run."""
        self.taken -= 1
        if not self._waiting:
            return
        owner, tickets = next(iter(self._waiting.items()))
        # The owner's next turn comes after those of all others.
        del self._waiting[owner]
        self._waiting[owner] = tickets
        ticket = tickets.popleft()
        self.taken += 1
        ticket.granted.set()
        ticket.on_position(None)
        self._report_positions()

    def _report_positions(self) -> None:
        self._waiting = {owner: tickets for owner, tickets in self._waiting.items() if tickets}
        # In each round, one run of each owner gets a slot.
        rounds = chain.from_iterable(zip_longest(*self._waiting.values()))
        for ahead, ticket in enumerate(filter(None, rounds)):
            ticket.on_position(ahead)

    def _overload_error(self, why: str) -> BridgeError:
        message = f"As many runs are under way as there may be at once ({self.taken}), and {why}."
        return BridgeError(
            message,
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
