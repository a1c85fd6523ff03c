"""Admission of sessions: a bounded number has a sandbox, in fair shares.

With n owners that have or want a place, each owner's share is 1/n. An idle session gives up its
sandbox for one that waits, and its state stays saved. A session that runs a program keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

import anyio

from bridge.errors import BridgeError

# A client can ask for any number of sessions and runs.
MAX_WAITING = 32  # Sessions that wait for a place; also runs that wait for one session.
MAX_WAITING_OF_OWNER = 8  # Waiting sessions of one owner, who could fill the queue.

_SETTING = "MCP_BRIDGE_SESSIONS sets how many there may be."


class Occupant(Protocol):
    """A session that may have a place; `in_use` while its place cannot be taken."""

    @property
    def owner(self) -> str: ...

    @property
    def in_use(self) -> bool: ...


class Candidate(Occupant, Protocol):
    """A session that waits for a place or has one. `since` is the time of its last use."""

    since: float

    async def put_away(self) -> None: ...


class SessionAdmission:
    """The places for open sessions. A session waits `wait_seconds` for one."""

    def __init__(self, places: int, wait_seconds: float) -> None:
        self._places = places
        self._wait_seconds = wait_seconds
        self._admitted: set[Candidate] = set()
        self._waiting: list[Candidate] = []
        self._yielding: set[Candidate] = set()
        self._turn = anyio.Lock()
        self._changed = anyio.Event()

    @property
    def open(self) -> int:
        return len(self._admitted)

    async def admit(self, session: Candidate) -> None:
        if await self._try_place(session):
            return
        own = [each.owner for each in self._waiting].count(session.owner)
        for waiting, most, whose, first in (
            (len(self._waiting), MAX_WAITING, "sessions", "Try again later"),
            (own, MAX_WAITING_OF_OWNER, "of your sessions", "Wait for their results"),
        ):
            if waiting >= most:
                raise BridgeError(
                    f"{most} {whose} wait for a place already.",
                    remedy=f"{first}, or run this without `session`. {_SETTING}",
                    code="session_limit",
                )
        self._waiting.append(session)
        try:
            with anyio.move_on_after(self._wait_seconds):
                while True:
                    changed = self._changed
                    if await self._try_place(session):
                        return
                    await changed.wait()
        finally:
            self._waiting.remove(session)
            # The next session in the queue may get the place.
            self._wake()
        raise BridgeError(
            f"All {self._places} sessions that may be open at once are in use.",
            remedy=f"Wait for their runs to end, or run this without `session`. {_SETTING}",
            code="session_limit",
        )

    def dismiss(self, session: Candidate) -> None:
        self._admitted.discard(session)
        self._yielding.discard(session)
        self._wake()

    def gives_way(self, session: Candidate) -> bool:
        """Return whether a session whose run has ended must give its place to a waiting one."""
        if len(self._yielding) >= len(self._waiting):
            return False
        waiting = [each.owner for each in self._waiting]
        # Sessions that already give up their places do not count.
        staying = [each for each in self._by_age() if each not in self._yielding]
        if not gives_up_place(session.owner, staying, self._places, waiting):
            return False
        self._yielding.add(session)
        return True

    async def _try_place(self, session: Candidate) -> bool:
        async with self._turn:
            while True:
                known = self._by_age()
                # Waiting sessions wake in their order of arrival.
                ahead = [] if session in self._waiting else [each.owner for each in self._waiting]
                answer = place_for(session.owner, known, self._places, ahead)
                if isinstance(answer, int):
                    await known[answer].put_away()
                    continue
                if answer == "no":
                    own = [each.owner for each in known].count(session.owner)
                    raise _all_used(own, self._places)
                if answer == "free":
                    self._admitted.add(session)
                return answer == "free"

    def _by_age(self) -> list[Candidate]:
        return sorted(self._admitted, key=lambda each: each.since)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _all_used(held: int, places: int) -> BridgeError:
    whose = f"All {places} sessions that may be open at once are yours and in use."
    if held < places:
        whose = (
            f"{held} of the {places} sessions that may be open at once are yours and in use, which "
            "is your share: the others are other callers'."
        )
    return BridgeError(
        whose,
        remedy="Wait for one of your runs to end, end a session (`end_session`), or run this "
        f"without `session`. {_SETTING}",
        code="session_limit",
    )


def place_for(
    owner: str, taken: Sequence[Occupant], places: int, ahead: Sequence[str] = ()
) -> int | Literal["free", "wait", "no"]:
    """Return the index of the holder that must give its place to an owner.

    Otherwise return "free" if a place is free, "wait" if one will be given up, and "no" if the
    owner has its share. An owner with its share or more replaces an idle holder of its own. An
    owner with less may take the place of an idle holder whose owner has more than its share.

    Args:
        taken: The holders of places, least recently used first.
        ahead: The owners that already wait.
    """
    held = Counter(each.owner for each in taken)
    # A place that was given up belongs to the owner that waited, not to a later equal owner.
    if len(taken) < places and not any(held[other] <= held[owner] for other in ahead):
        return "free"
    below = _below(owner, held, places)
    idle = [place for place, each in enumerate(taken) if not each.in_use]
    if below:
        others = [place for place in idle if _above(taken[place].owner, held, places, owner)]
        if others:
            return max(others, key=lambda one: held[taken[one].owner])
    if own := [place for place in idle if taken[place].owner == owner]:
        return own[0]
    return "wait" if below else "no"


def gives_up_place(
    owner: str, taken: Sequence[Occupant], places: int, waiting: Sequence[str]
) -> bool:
    """Return whether an owner must give an idle place to a waiting owner."""
    held = Counter(each.owner for each in taken)
    return any(
        _below(other, held, places) and _above(owner, held, places, other) for other in waiting
    )


def _below(owner: str, held: Counter[str], places: int) -> bool:
    return held[owner] * len(held.keys() | {owner}) < places


def _above(owner: str, held: Counter[str], places: int, wanting: str) -> bool:
    return held[owner] * len(held.keys() | {wanting}) > places
