"""Which of what is kept has to go. Pure.

Owns the order, the oldest first, and the bounds that no setting changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.artifacts.entries import Entry

MAX_ENTRIES = 50_000
"""Of all owners. Names of so many are read in a fraction of a second."""

MAX_OWNER_ENTRIES = 10_000
"""Of one owner."""

MAX_RUN_ENTRIES = 1_000
"""Of one run: more than anybody looks at one by one; of more, a program makes an archive."""

_SLACK = 10
"""A tenth more than needed is removed where there is too much, so that it is seldom."""

Held = tuple[str, Entry]
"""An entry, and the directory of its owner."""


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
    """

    goes: tuple[Held, ...]
    dead: tuple[str, ...]
    size: int
    count: int
    more: bool


def judge(
    held: Sequence[Held],
    sizes: Mapping[str, int],
    bounds: Bounds,
    *,
    room: int = 0,
    most: int | None = None,
) -> Verdict:
    """Return what has to go.

    Args:
        sizes: Of the contents there are, by digest.
        room: Bytes that have to be free afterwards.
        most: Entries, and contents, that go at once; None for all.
    """
    newest_first = sorted(held, key=lambda one: one[1].file_name, reverse=True)
    limits = (bounds.total_bytes - room, bounds.entries - (1 if room else 0))
    found = _found(newest_first, sizes, bounds, limits)
    if found.short:
        limits = (
            limits[0] - bounds.total_bytes // _SLACK,
            limits[1] - bounds.entries // _SLACK,
        )
        found = _found(newest_first, sizes, bounds, limits)
    goes = tuple(reversed(found.goes))
    now = goes[:most]
    used = found.digests | {entry.digest for _, entry in goes[len(now) :]}
    unused = [digest for digest in sizes if digest not in used]
    dead = tuple(unused[:most])
    return Verdict(
        goes=now,
        dead=dead,
        size=sum(sizes.values()) - sum(sizes[digest] for digest in dead),
        count=len(held) - len(now),
        more=len(now) < len(goes) or len(dead) < len(unused),
    )


@dataclass(kw_only=True)
class _Found:
    goes: list[Held]
    digests: set[str]
    size: int = 0
    short: bool = False


def _found(
    newest_first: Iterable[Held],
    sizes: Mapping[str, int],
    bounds: Bounds,
    limits: tuple[int, int],
) -> _Found:
    found, owners, count = _Found(goes=[], digests=set()), Counter[str](), 0
    for owner, entry in newest_first:
        size = sizes.get(entry.digest)
        if size is None or entry.created <= bounds.oldest or owners[owner] >= bounds.owner_entries:
            found.goes.append((owner, entry))
            continue
        more = 0 if entry.digest in found.digests else size
        # Once something has to go for its size, all that is older goes before it.
        found.short = found.short or found.size + more > limits[0] or count >= limits[1]
        if found.short:
            found.goes.append((owner, entry))
            continue
        count += 1
        owners[owner] += 1
        found.size += more
        found.digests.add(entry.digest)
    return found
