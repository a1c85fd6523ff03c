"""Which of what is kept has to go, where it is of many owners. Pure.

What has expired goes, and where there is too much the oldest of who holds most; see
`bridge.fair_shares`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.fair_shares import Thing, surplus
from bridge.model import PERSON_OWNERS
from bridge.store.store import owner_digest

_SLACK = 10
"""A tenth more than needed is removed where there is too much, so that it is seldom. Shares are
therefore of the nine tenths that stay."""

_PERSON = frozenset(map(owner_digest, PERSON_OWNERS))


class Held(NamedTuple):
    """Something that is kept: whose, since when, and how much."""

    owner: str
    id: str
    created: float
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What may stay.

    Attributes:
        total_bytes: Of all contents, each counted once.
        oldest: What was made at that moment or before has expired.
        entries, owner_entries: In all, and of one owner.
    """

    total_bytes: int
    oldest: float
    entries: int
    owner_entries: int


def surplus_of(
    held: Sequence[Held], bounds: Bounds, coming: Held | None = None
) -> list[Held] | None:
    """Return what has to go; None if what is coming is more than its owner's share.

    Args:
        coming: What there has to be room for afterwards.
    """
    over, left = _outlived(held, bounds)
    if coming is not None:
        left.append(coming)
    gone = _too_much(left, bounds.total_bytes, bounds.entries)
    if coming in gone:
        return None
    if gone:
        slack = bounds.total_bytes // _SLACK, bounds.entries // _SLACK
        gone = _too_much(left, bounds.total_bytes - slack[0], bounds.entries - slack[1])
    if coming in gone:
        # Room there is for it; only the tenth more cannot be had.
        del gone[gone.index(coming) :]
    return over + gone


def _outlived(held: Sequence[Held], bounds: Bounds) -> tuple[list[Held], list[Held]]:
    """Return what is removed in any case, and the rest; each the oldest first."""
    goes, stays, owners = list[Held](), list[Held](), Counter[str]()
    for one in sorted(held, key=lambda one: (one.created, one.id), reverse=True):
        if one.created > bounds.oldest and owners[one.owner] < bounds.owner_entries:
            owners[one.owner] += 1
            stays.append(one)
        else:
            goes.append(one)
    return goes[::-1], stays[::-1]


def _too_much(kept: Sequence[Held], most_bytes: int, most: int) -> list[Held]:
    """Return those that go for their number, and of the rest for their size."""
    gone = [kept[at] for at in surplus([_thing(one, (one.owner, one.id), 1) for one in kept], most)]
    hidden = set(gone)
    rest = [one for one in kept if one not in hidden]
    things = [_thing(one, one.digest, one.size) for one in rest]
    return gone + [rest[at] for at in surplus(things, most_bytes)]


def _thing(one: Held, content: object, size: int) -> Thing:
    whose = ("person", "") if one.owner in _PERSON else ("others", one.owner)
    return Thing(*whose, content, size)
