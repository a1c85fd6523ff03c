"""Decides which stored items of many owners to remove, and by whose limits.

With n owners that store something, each owner's share is 1/n. The owner with the most loses its
oldest item first. An owner with less never gives way to one with more.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from bridge.model import PERSON_OWNERS, owner_digest
from bridge.store.store import Transaction

logger = logging.getLogger(__name__)

LIMITS = "limits"  # The kind of documents with a shared store's limits.

_PERSON = frozenset(map(owner_digest, PERSON_OWNERS))


class StoredItem(NamedTuple):
    owner: str
    id: str
    created: float
    digest: str
    size: int

    @property
    def caller(self) -> tuple[str, str]:
        """The party and the caller in it: the person's clients are one, in a party of its own."""
        return ("person", "") if self.owner in _PERSON else ("others", self.owner)


class RetentionLimits(NamedTuple):
    """Limits on the items that stay; items created at `oldest` or earlier have expired."""

    total_bytes: int
    oldest: float
    entries: int
    owner_entries: int


def may_remove(kept: Transaction, kind: str, own: Mapping[str, int]) -> bool:
    """Return whether a bridge may remove a kind's items by its own limits.

    On a server the limits are a row, which the first bridge writes. A bridge whose settings differ
    warns once and removes nothing.
    """
    if not kept.is_shared:
        return True
    said = json.dumps(own, sort_keys=True).encode()
    known = kept.get(LIMITS, "", kind)
    if known is None:
        kept.put(LIMITS, "", kind, said)
    elif known != said:
        warn_once(kind, known.decode(), said.decode())
    return known in (None, said)


@cache
def warn_once(kind: str, known: str, own: str) -> None:
    logger.warning(
        "this bridge removes no %s: its limits %s are not the store's %s; "
        "`mcp-code-bridge store limits` shows both",
        *(kind, own, known),
    )


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
    removed = surplus(items, most, entries=True)
    hidden = set(removed)
    return removed + surplus([one for one in items if one not in hidden], most_bytes)


def surplus(items: Sequence[StoredItem], budget: int, *, entries: bool = False) -> list[StoredItem]:
    """Return the items to evict until the rest is within a budget of bytes, or of entries.

    The next item is the oldest of the largest caller in the larger party: the person, or all other
    callers. A lower budget evicts the same items first. Equal content counts once in the total,
    once for each party and once for each caller.

    Args:
        items: The oldest first.
    """
    # By `()`, `(party,)` and `(party, caller)`: the held sizes, and how often each holds a content.
    sizes: Counter[tuple[str, ...]] = Counter()
    times: Counter[tuple[tuple[str, ...], Hashable]] = Counter()

    def count(one: StoredItem, change: int) -> None:
        content, size = ((one.owner, one.id), 1) if entries else (one.digest, one.size)
        for whose in ((), one.caller[:1], one.caller):
            before = times[whose, content]
            times[whose, content] += change
            if not (before and before + change):
                sizes[whose] += change * size

    queues: dict[tuple[str, str], deque[StoredItem]] = {}
    for one in items:
        count(one, 1)
        queues.setdefault(one.caller, deque()).append(one)

    def rank(caller: tuple[str, str]) -> tuple[float | str, ...]:
        # Of two equal callers, the one with the older item.
        return sizes[caller[:1]], caller[0], sizes[caller], -queues[caller][0].created

    gone: list[StoredItem] = []
    while sizes[()] > budget and queues:
        largest = max(queues, key=rank)
        gone.append(queues[largest].popleft())
        count(gone[-1], -1)
        if not queues[largest]:
            del queues[largest]
    return gone
