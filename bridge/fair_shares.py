"""Who gives way when something that all callers share is used up. Pure.

Owns what a share is, and whose things are removed first: the oldest of the owner that holds most.
A share is equal: with n owners that hold something or want to, the n-th part. An owner with less
never gives way while another holds more. What is shared, and how, is up to who uses this module.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Thing(NamedTuple):
    """Something that is kept.

    Attributes:
        party: Of those that keep something together; parties have equal shares, and within one its
            callers do.
        content: What takes the room. However often it is there, it counts once: in all, for each
            party and for each caller.
        size: Of the content; the same for the same.
    """

    party: str
    caller: str
    content: Hashable
    size: int


def surplus(things: Sequence[Thing], budget: int) -> list[int]:
    """Return the places of those that go, so that the others are within a budget, in that order.

    The next is always the oldest of the caller that holds most, in the party that holds most. So
    for a lower budget the same go first, and others after them.

    Args:
        things: The oldest first.
    """
    if sum({thing.content: thing.size for thing in things}.values()) <= budget:
        return []
    held = _Held()
    # By party and caller, where theirs are.
    places: dict[str, dict[str, deque[int]]] = {}
    for place, thing in enumerate(things):
        held.add(thing)
        places.setdefault(thing.party, {}).setdefault(thing.caller, deque()).append(place)
    gone: list[int] = []
    while held.sizes[()] > budget and places:
        party = max(places, key=lambda name: (held.sizes[name,], name))
        callers = places[party]
        # of two, the one with the older thing
        caller = max(callers, key=lambda name: (held.sizes[party, name], -callers[name][0]))
        gone.append(callers[caller].popleft())
        held.take(things[gone[-1]])
        if not callers[caller]:
            del callers[caller]
        if not callers:
            del places[party]
    return gone


class _Held:
    """How much there is in all, of each party and of each of its callers.

    Attributes:
        sizes: By `()`, `(party,)` and `(party, caller)`.
    """

    def __init__(self) -> None:
        self.sizes: Counter[tuple[str, ...]] = Counter()
        self._times: Counter[tuple[tuple[str, ...], Hashable]] = Counter()

    def add(self, thing: Thing) -> None:
        for whose in ((), (thing.party,), (thing.party, thing.caller)):
            if not self._times[whose, thing.content]:
                self.sizes[whose] += thing.size
            self._times[whose, thing.content] += 1

    def take(self, thing: Thing) -> None:
        for whose in ((), (thing.party,), (thing.party, thing.caller)):
            self._times[whose, thing.content] -= 1
            if not self._times[whose, thing.content]:
                self.sizes[whose] -= thing.size


class Taken(NamedTuple):
    """A place that is taken; `busy` while it cannot be taken away."""

    caller: str
    busy: bool


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The outcome for an owner that wants a place.

    Attributes:
        answer: A place is free; one has to be given up, at `place`; one will be, so wait; or no.
        held: How many places the caller has.
    """

    answer: Literal["free", "instead", "wait", "no"]
    place: int = -1
    held: int = 0


def place_for(
    caller: str, taken: Sequence[Taken], places: int, ahead: Sequence[str] = ()
) -> Ruling:
    """Return whose place a caller gets.

    A caller with a share or more gives up a place of its own for it; one with less gets a place of
    a caller that has more. A busy place is never taken; `yields` says what is worth waiting for.

    Args:
        taken: What has not been used for longest first.
        ahead: Who waits for one already.
    """
    held = Counter(each.caller for each in taken)
    mine = held[caller]
    # A place that was given up is for the one who waited for it, not for a later one with as much.
    if len(taken) < places and not any(held[other] <= mine for other in ahead):
        return Ruling(answer="free", held=mine)
    below = _below(caller, held, places)
    idle = [place for place, each in enumerate(taken) if not each.busy]
    if below:
        others = [place for place in idle if _above(taken[place].caller, held, places, caller)]
        if others:
            place = max(others, key=lambda one: held[taken[one].caller])
            return Ruling(answer="instead", place=place, held=mine)
    own = [place for place in idle if taken[place].caller == caller]
    if own:
        return Ruling(answer="instead", place=own[0], held=mine)
    return Ruling(answer="wait" if below else "no", held=mine)


def gives_up_place(
    caller: str, taken: Sequence[Taken], places: int, waiting: Sequence[str]
) -> bool:
    """Return whether a caller gives up a place, now that it is not busy, for one who waits."""
    held = Counter(each.caller for each in taken)
    return any(
        _below(other, held, places) and _above(caller, held, places, other) for other in waiting
    )


def _below(caller: str, held: Counter[str], places: int) -> bool:
    return held[caller] * len(held.keys() | {caller}) < places


def _above(caller: str, held: Counter[str], places: int, wanting: str) -> bool:
    return held[caller] * len(held.keys() | {wanting}) > places
