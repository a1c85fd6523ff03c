"""Which of what is kept has to go. Pure.

Owns what is judged, and the bounds that no setting changes: what has expired goes, and where there
is too much the oldest of who holds most; see `bridge.shares`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.artifacts.entries import Entry, owner_folder
from bridge.model import PERSON_OWNERS
from bridge.shares import Thing, surplus

MAX_ENTRIES = 50_000
"""Of all owners. Names of so many are read in a fraction of a second."""

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

_PERSON = frozenset(map(owner_folder, PERSON_OWNERS))

Held = tuple[str, Entry]
"""An entry, and the directory of its owner."""


@dataclass(frozen=True, kw_only=True)
class Coming:
    """What is about to be kept: whose, by its directory, and of what content."""

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
    """What stays, and what does not.

    Attributes:
        goes: Entries, the oldest first.
        dead: Digests of contents that nobody has any more.
        size, count: Of what stays.
        more: Whether as much as may go at once does, and there is more.
        refused: What is coming is more than its owner's share, and nothing goes for it.
    """

    goes: tuple[Held, ...]
    dead: tuple[str, ...]
    size: int
    count: int
    more: bool
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

    def holds(self, owner: str, size: int, now: tuple[int, int] | None, idle: float) -> bool:
        """Tell whether the same would be said of this.

        Also of a little less: who tries that byte by byte would have everything looked through for
        each of them.
        """
        if now is None or now != self._totals or not 0 <= idle < REFUSED_SECONDS:
            return False
        return owner in self._sizes and size > self._sizes[owner] // 2


def judge(
    held: Sequence[Held],
    sizes: Mapping[str, int],
    bounds: Bounds,
    *,
    coming: Coming | None = None,
    most: int | None = None,
) -> Verdict:
    """Return what has to go.

    Args:
        sizes: Of the contents there are, by digest.
        coming: What there has to be room for afterwards.
        most: Entries, and contents, that go at once; None for all.
    """
    over, left = _outlived(held, sizes, bounds)
    parts = [(owner, entry.digest) for owner, entry in left]
    known = dict(sizes)
    if coming is not None:
        parts.append((coming.owner, coming.digest))
        known[coming.digest] = coming.size
    places = _too_much(parts, known, bounds.total_bytes, bounds.entries)
    refused = len(left) in places
    if places:
        slack = bounds.total_bytes // _SLACK, bounds.entries // _SLACK
        limits = bounds.total_bytes - slack[0], bounds.entries - slack[1]
        places = [] if refused else _too_much(parts, known, *limits)
    if len(left) in places:
        # Room there is for it; only the tenth more cannot be had.
        del places[places.index(len(left)) :]
    goes = (*over, *(left[place] for place in places))
    now = goes[:most]
    gone = set(now)
    used = (
        {one[1].digest for one in held if one not in gone}
        if gone
        else {entry.digest for _, entry in held}
    )
    unused = [digest for digest in sizes if digest not in used]
    dead = tuple(unused[:most])
    return Verdict(
        goes=now,
        dead=dead,
        size=sum(sizes.values()) - sum(sizes[digest] for digest in dead),
        count=len(held) - len(now),
        more=len(now) < len(goes) or len(dead) < len(unused),
        refused=refused,
    )


def _outlived(
    held: Sequence[Held], sizes: Mapping[str, int], bounds: Bounds
) -> tuple[list[Held], list[Held]]:
    """Return what goes whatever there is room for, and the rest; each the oldest first."""
    goes, stays, owners = list[Held](), list[Held](), Counter[str]()
    for one in sorted(held, key=lambda one: one[1].file_name, reverse=True):
        owner, entry = one
        fits = owners[owner] < bounds.owner_entries
        if entry.digest in sizes and entry.created > bounds.oldest and fits:
            owners[owner] += 1
            stays.append(one)
        else:
            goes.append(one)
    return goes[::-1], stays[::-1]


def _too_much(
    parts: Sequence[tuple[str, str]], sizes: Mapping[str, int], most_bytes: int, most: int
) -> list[int]:
    """Return the places of those that go for their number, and of the rest for their size."""
    if (
        len(parts) <= most
        and sum(sizes[digest] for digest in {one[1] for one in parts}) <= most_bytes
    ):
        return []
    whose = [("person", "") if owner in _PERSON else ("others", owner) for owner, _ in parts]
    gone = list[int]()
    if len(parts) > most:
        gone = surplus([Thing(*one, place, 1) for place, one in enumerate(whose)], most)
    hidden = set(gone)
    rest = [place for place in range(len(parts)) if place not in hidden]
    things = [Thing(*whose[place], parts[place][1], sizes[parts[place][1]]) for place in rest]
    return gone + [rest[place] for place in surplus(things, most_bytes)]
