"""Decides which stored items of many owners to remove, and by whose limits."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from bridge.fair_shares import Thing, surplus
from bridge.model import PERSON_OWNERS
from bridge.store.store import Transaction, owner_digest

logger = logging.getLogger(__name__)

LIMITS = "limits"  # The kind of documents with a shared store's limits.

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
