"""Decides which stored items of many owners to remove. Pure.

With n owners that store something, each owner's share is 1/n. The owner with the most loses its
oldest item first. An owner with less never gives way to one with more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from bridge.model import PERSON_OWNERS, owner_digest

_PERSON = frozenset(map(owner_digest, PERSON_OWNERS))


class StoredItem(NamedTuple):
    owner: str
    id: str
    created: float
    digest: str
    size: int


class RetentionLimits(NamedTuple):
    """Limits on the items that stay; items created at `oldest` or earlier have expired."""

    total_bytes: int
    oldest: float
    entries: int
    owner_entries: int


def items_to_remove(
    items: Sequence[StoredItem], bounds: RetentionLimits, incoming: StoredItem | None = None
) -> list[StoredItem] | None:
    """Return the items to remove; None if the incoming item exceeds its owner's share."""
    over, left, owners = list[StoredItem](), list[StoredItem](), Counter[str]()
    for one in sorted(items, key=lambda one: (one.created, one.id), reverse=True):
        stays = one.created > bounds.oldest and owners[one.owner] < bounds.owner_entries
        owners[one.owner] += stays
        (left if stays else over).append(one)
    over.reverse()
    left.reverse()
    if incoming is not None:
        left.append(incoming)
    removed = _over_limits(left, bounds.total_bytes, bounds.entries)
    if incoming in removed:
        return None
    if removed:
        # Remove a tenth more, so that removals are rare. Shares are those of the rest.
        most_bytes = bounds.total_bytes - bounds.total_bytes // 10
        removed = _over_limits(left, most_bytes, bounds.entries - bounds.entries // 10)
    if incoming in removed:
        # The item fits; only the tenth more cannot be freed.
        del removed[removed.index(incoming) :]
    return over + removed


def _over_limits(items: Sequence[StoredItem], most_bytes: int, most: int) -> list[StoredItem]:
    """Return the items beyond the limit on items, then those beyond the limit on bytes."""
    removed = [
        items[at] for at in surplus([_as_thing(one, (one.owner, one.id), 1) for one in items], most)
    ]
    hidden = set(removed)
    rest = [one for one in items if one not in hidden]
    things = [_as_thing(one, one.digest, one.size) for one in rest]
    return removed + [rest[at] for at in surplus(things, most_bytes)]


def _as_thing(one: StoredItem, content: object, size: int) -> Thing:
    whose = ("person", "") if one.owner in _PERSON else ("others", one.owner)
    return Thing(*whose, content, size)


class Thing(NamedTuple):
    """A stored item that `surplus` may evict.

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
