"""Which runs may have a sandbox now: so many at once, the others in turn.

Owns the places and the queue for them. Callers have their turns one after the other, and each
caller's runs the order they came in. A run has its place until its sandbox is gone, also while a
person is asked something.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from bridge.errors import OverloadedError

MAX_WAITING = 400
"""Runs that wait for a place at a time. Each has its program in memory."""

MAX_WAITING_OF_OWNER = 100
"""Of one caller, so that none keeps others from waiting."""

QUEUE_SECONDS = 120.0
"""Longest wait for a place: what a run may take at most, unless that is set otherwise."""

RUNS_PER_CORE = 4
LEAST_RUNS = 2
MOST_RUNS = 32
"""Of what is allowed at once where nobody has set it. Most runs wait for their servers."""

_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")

Tell = Callable[[int | None], None]
"""Takes how many runs are ahead of one that waits; None once it has its place."""


class _Ticket:
    """A run that waits."""

    __slots__ = ("granted", "owner", "tell")

    def __init__(self, owner: str, tell: Tell) -> None:
        self.owner = owner
        self.tell = tell
        self.granted = anyio.Event()


class Place:
    """One run's. It is free once everything is over that it is kept for."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._kept = 0

    def keep(self) -> Callable[[], None]:
        """Keep it until what is returned has been called, once."""
        self._kept += 1
        return self._let_go

    def _let_go(self) -> None:
        self._kept -= 1
        if not self._kept:
            self._free()


class RunQueue:
    """The places of runs.

    Args:
        places: How many runs there may be at once.
        wait_seconds: How long a place is waited for.
    """

    def __init__(self, places: int, wait_seconds: float = QUEUE_SECONDS) -> None:
        self._places = places
        self._wait_seconds = wait_seconds
        self._taken = 0
        # The owner whose turn is next comes first.
        self._waiting: dict[str, deque[_Ticket]] = {}

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many runs wait for one."""
        return sum(len(tickets) for tickets in self._waiting.values())

    @asynccontextmanager
    async def place(self, owner: str, tell: Tell) -> AsyncIterator[Place]:
        """Have a place while this is open, and for as long as it is kept.

        Args:
            tell: Told how many runs are ahead, only if the place has to be waited for.

        Raises:
            OverloadedError: Too many runs wait already, or this one has waited long enough.
        """
        if self._taken < self._places:
            self._taken += 1
        else:
            await self._wait(_Ticket(owner, tell))
        place = Place(self._give_on)
        let_go = place.keep()
        try:
            yield place
        finally:
            let_go()

    def _give_on(self) -> None:
        self._taken -= 1
        self._grant()

    async def _wait(self, ticket: _Ticket) -> None:
        if self.waiting >= MAX_WAITING:
            raise self._overloaded(f"{self.waiting} more wait already")
        own = self._waiting.get(ticket.owner, ())
        if len(own) >= MAX_WAITING_OF_OWNER:
            raise self._overloaded(f"{len(own)} more of yours wait already")
        self._waiting.setdefault(ticket.owner, deque()).append(ticket)
        self._tell()
        try:
            with anyio.move_on_after(self._wait_seconds):
                await ticket.granted.wait()
        except BaseException:
            self._leave(ticket)
            raise
        if not ticket.granted.is_set():
            self._leave(ticket)
            why = f"this one has waited {self._wait_seconds:g} s; {self.waiting} others wait too"
            raise self._overloaded(why)

    def _leave(self, ticket: _Ticket) -> None:
        """Have one wait no longer; a place that it was just given is another's."""
        if ticket.granted.is_set():
            self._give_on()
            return
        tickets = self._waiting[ticket.owner]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.owner]
        self._tell()

    def _grant(self) -> None:
        """Give the places that are free to those whose turn it is."""
        if not self._waiting:
            return
        while self._waiting and self._taken < self._places:
            owner = next(iter(self._waiting))
            tickets = self._waiting.pop(owner)
            ticket = tickets.popleft()
            if tickets:
                self._waiting[owner] = tickets
            self._taken += 1
            ticket.granted.set()
            ticket.tell(None)
        self._tell()

    def _tell(self) -> None:
        lengths = [len(tickets) for tickets in self._waiting.values()]
        for turn, tickets in enumerate(self._waiting.values()):
            for number, ticket in enumerate(tickets):
                ticket.tell(runs_ahead(lengths, turn, number))

    def _overloaded(self, why: str) -> OverloadedError:
        message = f"As many runs are under way as there may be at once ({self._taken}), and {why}."
        return OverloadedError(
            message,
            remedy="Nothing was run. Wait for results of yours, or try again later; put several "
            "steps into one program. MCP_BRIDGE_RUNS sets how many may run at once.",
        )


def runs_ahead(lengths: list[int], turn: int, number: int) -> int:
    """Return how many runs get their place before one that waits.

    Args:
        lengths: How many runs of each owner wait, in the order of their turns.
        turn: The owner's place in that order.
        number: The run's place among the owner's, from 0.
    """
    others = sum(
        min(length, number + (other < turn))
        for other, length in enumerate(lengths)
        if other != turn
    )
    return others + number


def default_runs(cores: int, memory: int | None, run_memory: int) -> int:
    """Return how many runs there may be at once on a machine. Pure.

    Args:
        memory: Bytes; None if that is not known.
        run_memory: Bytes that a run may take.
    """
    found = RUNS_PER_CORE * cores
    if memory is not None:
        found = min(found, memory // run_memory)
    return max(LEAST_RUNS, min(MOST_RUNS, found))


def usable_memory() -> int | None:
    """Return the bytes of memory that this process may use in all; None if that is not known."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    try:
        # "max" where it has no limit of its own.
        return min(found, int(_CGROUP_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return found
