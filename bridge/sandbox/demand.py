"""How many sandboxes wait, when the next one is started, and the account of both.

Pure: times in, numbers out. Whoever starts them is `pool`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

RECENT_SECONDS = 120.0
"""How long a burst is remembered: long enough for the next question of a conversation."""

FORGOTTEN_SECONDS = 600.0
"""After this without a run nothing waits, so that a forgotten client costs nothing for long."""

CLAIMS = 64
"""Most claims remembered, which is more than any pool is large."""

SHORTEST_LEAD_SECONDS = 0.5
"""Runs closer together than this count as one burst, however fast sandboxes start."""

SETTLE_SECONDS = 0.025
"""Of quiet before a sandbox is started ahead of time. A run that follows at once starts its own
without competition, and the answer to the last one is on its way first."""

BUSY_SECONDS = 0.25
"""The same on few cores while programs run: short ones are through by then, and long ones lose
less by one start beside them than the next run does without."""

FEW_CORES = 4
"""Below this a start takes a good part of the machine."""


def wanted(claims: Sequence[float], now: float, *, most: int, start_seconds: float) -> int:
    """Return how many sandboxes should wait.

    An order-up-to (base-stock) policy as inventory theory has it (Zipkin, Foundations of Inventory
    Management, 2000, chapter 6): the stock covers the demand of one lead time, here the largest
    seen lately. The lead time is twice what a start takes, since starts go one after another.

    Args:
        claims: When runs asked for a sandbox, ascending.
        most: What is never exceeded.
        start_seconds: How long a start takes.
    """
    if not claims or now - claims[-1] >= FORGOTTEN_SECONDS:
        return 0
    lead = max(SHORTEST_LEAD_SECONDS, 2 * start_seconds)
    recent = claims[bisect_left(claims, now - RECENT_SECONDS) :]
    first = largest = 0
    for last, claim in enumerate(recent):
        while claim - recent[first] >= lead:
            first += 1
        largest = max(largest, last - first + 1)
    # One as long as somebody may come back.
    return min(most, max(1, largest))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What there is at one moment.

    Attributes:
        wanted: How many should wait.
        waiting: How many do.
        starting: How many are being started for nobody in particular.
        awaited: How many runs wait for a sandbox that is being started.
        running: How many programs run.
        quiet: Seconds since a run began, got its sandbox or ended.
        cores: What the machine has.
    """

    wanted: int
    waiting: int
    starting: int
    awaited: int
    running: int
    quiet: float
    cores: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do now.

    Attributes:
        start: How many to start.
        drop: How many of those that wait to give up.
        again: Seconds until to ask again, should nothing change before; None for never.
    """

    start: int = 0
    drop: int = 0
    again: float | None = None


def decide(at: Situation) -> Decision:
    """Return what to start or give up, without starving what runs.

    Nothing is started ahead of time beside a start that somebody waits for.
    """
    drop = max(0, at.waiting - at.wanted)
    missing = at.wanted - at.waiting - at.starting
    room = max(1, at.cores // 2) - at.starting
    if missing <= 0 or room <= 0 or at.awaited:
        return Decision(drop=drop)
    busy = at.running > 0 and at.cores < FEW_CORES
    left = (BUSY_SECONDS if busy else SETTLE_SECONDS) - at.quiet
    if left > 0:
        return Decision(drop=drop, again=left)
    return Decision(start=min(missing, room), drop=drop)


@dataclass(frozen=True, kw_only=True)
class PoolReport:
    """What a pool holds and has done.

    Attributes:
        most: How many may wait.
        wanted: How many should, by recent demand.
        waiting, starting: How many do, and how many are on the way.
        warm, half, cold: Claims so far, by how they came by their resource.
        died: How many died while they waited.
        failed: How many starts ahead of time failed.
    """

    most: int
    wanted: int
    waiting: int
    starting: int
    warm: int
    half: int
    cold: int
    died: int
    failed: int

    def __str__(self) -> str:
        return (
            f"{self.waiting} of at most {self.most} sandboxes wait, {self.wanted} wanted, "
            f"{self.starting} starting; runs found {self.warm} ready, {self.half} half started, "
            f"{self.cold} had to start theirs; {self.died} died waiting, {self.failed} failed to "
            "start ahead of time"
        )
