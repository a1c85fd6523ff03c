"""Fair eviction and queueing for a resource that all callers share. Pure.

With n owners that hold or want something, each owner's share is 1/n. The owner with the most gives
up its oldest item first. An owner with less never gives way to one with more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Thing(NamedTuple):
    """A stored item.

    Attributes:
        party: The group of callers that store items together. Parties have equal shares, and so
            do the callers within a party.
        content: The content's identity. Equal content counts once in the total, once for each
            party and once for each caller.
        size: The content's size.
    """

    party: str
    caller: str
    content: Hashable
    size: int


def surplus(things: Sequence[Thing], budget: int) -> list[int]:
    """Return the indexes of the items to evict until the rest is within a budget.

    The next item is the oldest of the largest caller in the largest party. A lower budget evicts
    the same items first.

    Args:
        things: The items, oldest first.
    """
    if sum({thing.content: thing.size for thing in things}.values()) <= budget:
        return []
    held = _Held()
    # The indexes of each party and caller.
    places: dict[str, dict[str, deque[int]]] = {}
    for place, thing in enumerate(things):
        held.add(thing)
        places.setdefault(thing.party, {}).setdefault(thing.caller, deque()).append(place)
    gone: list[int] = []
    while held.sizes[()] > budget and places:
        party = max(places, key=lambda name: (held.sizes[name,], name))
        callers = places[party]
        # Of two equal callers, the one with the older item.
        caller = max(callers, key=lambda name: (held.sizes[party, name], -callers[name][0]))
        gone.append(callers[caller].popleft())
        held.take(things[gone[-1]])
        if not callers[caller]:
            del callers[caller]
        if not callers:
            del places[party]
    return gone


class _Held:
    """The held sizes in total, for each party and for each of its callers.

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
    """An occupied place; `busy` if it cannot be taken away."""

    caller: str
    busy: bool


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The decision on an owner's request for a place.

    Attributes:
        answer: `free`: take a free place. `instead`: evict the one at `place`. `wait`: one will
            be given up. `no`: the caller has its share.
        held: The number of places that the caller has.
    """

    answer: Literal["free", "instead", "wait", "no"]
    place: int = -1
    held: int = 0


def place_for(
    caller: str, taken: Sequence[Taken], places: int, ahead: Sequence[str] = ()
) -> Ruling:
    """Decide which place a caller gets.

    A caller with its share or more replaces an idle place of its own. A caller with less may take
    an idle place of a caller with more than its share. A busy place is never taken.

    Args:
        taken: The occupied places, least recently used first.
        ahead: The callers that already wait.
    """
    held = Counter(each.caller for each in taken)
    mine = held[caller]
    # A place that was given up belongs to the caller that waited, not to a later equal caller.
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
    """Return whether a caller must give its idle place to a waiting caller."""
    held = Counter(each.caller for each in taken)
    return any(
        _below(other, held, places) and _above(caller, held, places, other) for other in waiting
    )


def _below(caller: str, held: Counter[str], places: int) -> bool:
    return held[caller] * len(held.keys() | {caller}) < places


def _above(caller: str, held: Counter[str], places: int, wanting: str) -> bool:
    return held[caller] * len(held.keys() | {wanting}) > places
