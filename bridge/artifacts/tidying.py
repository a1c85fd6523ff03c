"""Which of what is kept has to go. Pure.

Owns what is judged, and the bounds that no setting changes: what has expired goes, and where there
is too much the oldest of who holds most; see `bridge.shares`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.model import PERSON_OWNERS
from bridge.shares import Thing, surplus
from bridge.store import owner_digest

MAX_ENTRIES = 50_000
"""Of all owners. So many are looked through in a fraction of a second."""

MAX_OWNER_ENTRIES = 10_000
"""Of one owner."""

MAX_RUN_ENTRIES = 1_000
"""Of one run: more than anybody looks at one by one; of more, a program makes an archive."""

REFUSED_SECONDS = 10.0
"""For which a refusal holds while nothing changes: to look through a full store takes a second, in
which nobody else's is kept, and a program can try again at once."""

_SLACK = 10
"""A tenth more than needed is removed where there is too much, so that it is seldom. Shares are
therefore of the nine tenths that stay."""

_PERSON = frozenset(map(owner_digest, PERSON_OWNERS))


class Held(NamedTuple):
    """Something that is kept: whose, since when (milliseconds since the epoch), and how much."""

    owner: str
    id: str
    created: int
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Coming:
    """What is about to be kept."""

    owner: str
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What may stay.

    Attributes:
        total_bytes: Of all contents, each counted once.
        oldest: Milliseconds since the epoch; what was made before has expired.
    """

    total_bytes: int
    oldest: int
    entries: int = MAX_ENTRIES
    owner_entries: int = MAX_OWNER_ENTRIES


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What does not stay.

    Attributes:
        goes: The oldest first.
        refused: What is coming is more than its owner's share, and nothing goes for it.
    """

    goes: tuple[Held, ...]
    refused: bool = False


class Refused:
    """How much was refused to whom by the last look, or since, with nothing kept in between."""

    def __init__(self) -> None:
        self._totals: tuple[int, int] | None = None
        self._sizes: dict[str, int] = {}

    def add(self, coming: Coming, now: tuple[int, int]) -> None:
        """Note a refusal, and the totals that there were."""
        if now != self._totals:
            self._totals, self._sizes = now, {}
        self._sizes[coming.owner] = coming.size

    def holds(self, coming: Coming, now: tuple[int, int], idle: float) -> bool:
        """Tell whether the same would be said of this.

        Also of a little less: who tries that byte by byte would have everything looked through for
        each of them.
        """
        if now != self._totals or not 0 <= idle < REFUSED_SECONDS:
            return False
        return coming.owner in self._sizes and coming.size > self._sizes[coming.owner] // 2


def judge(held: Sequence[Held], bounds: Bounds, coming: Coming | None = None) -> Verdict:
    """Return what has to go.

    Args:
        coming: What there has to be room for afterwards.
    """
    over, left = _outlived(held, bounds)
    things = [(one.owner, one.digest, one.size) for one in left]
    if coming is not None:
        things.append((coming.owner, coming.digest, coming.size))
    places = _too_much(things, bounds.total_bytes, bounds.entries)
    refused = len(left) in places
    if places:
        slack = bounds.total_bytes // _SLACK, bounds.entries // _SLACK
        limits = bounds.total_bytes - slack[0], bounds.entries - slack[1]
        places = [] if refused else _too_much(things, *limits)
    if len(left) in places:
        # Room there is for it; only the tenth more cannot be had.
        del places[places.index(len(left)) :]
    return Verdict(goes=(*over, *(left[place] for place in places)), refused=refused)


def _outlived(held: Sequence[Held], bounds: Bounds) -> tuple[list[Held], list[Held]]:
    """Return what goes whatever there is room for, and the rest; each the oldest first."""
    goes, stays, owners = list[Held](), list[Held](), Counter[str]()
    for one in sorted(held, key=lambda one: (one.created, one.id), reverse=True):
        if one.created > bounds.oldest and owners[one.owner] < bounds.owner_entries:
            owners[one.owner] += 1
            stays.append(one)
        else:
            goes.append(one)
    return goes[::-1], stays[::-1]


def _too_much(kept: Sequence[tuple[str, str, int]], most_bytes: int, most: int) -> list[int]:
    """Return the places of those that go for their number, and of the rest for their size."""
    whose = [("person", "") if owner in _PERSON else ("others", owner) for owner, _, _ in kept]
    gone = surplus([Thing(*one, place, 1) for place, one in enumerate(whose)], most)
    hidden = set(gone)
    rest = [place for place in range(len(kept)) if place not in hidden]
    things = [Thing(*whose[place], *kept[place][1:]) for place in rest]
    return gone + [rest[place] for place in surplus(things, most_bytes)]
