"""Which saved sessions have to go. Pure.

Owns what is judged: what has expired goes, and where there is too much the oldest of who holds
most; see `bridge.shares`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bridge.model import PERSON_OWNERS
from bridge.shares import Thing, surplus


class SavedFile(NamedTuple):
    """A session's: when it was written, how large it is, and where."""

    saved: float
    size: int
    place: Path

    @property
    def owner(self) -> str:
        """The name of its directory."""
        return self.place.parent.name


def owner_digest(owner: str) -> str:
    """Return what stands for an owner on disk."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_PERSON = frozenset(map(owner_digest, PERSON_OWNERS))


def surplus_of(
    files: Sequence[SavedFile], *, oldest: float, total_bytes: int, most: int, most_of_owner: int
) -> list[SavedFile]:
    """Return those that go.

    Args:
        oldest: What was saved before has expired.
        most, most_of_owner: Sessions in all, and of one owner.
    """
    goes, stays, of_owner = list[SavedFile](), list[SavedFile](), Counter[str]()
    for file in sorted(files, key=lambda each: -each.saved):
        if file.saved >= oldest and of_owner[file.owner] < most_of_owner:
            of_owner[file.owner] += 1
            stays.append(file)
        else:
            goes.append(file)
    stays.reverse()
    for budget, by_size in ((most, False), (total_bytes, True)):
        things = [
            Thing(*_whose(file.owner), file.place, file.size if by_size else 1) for file in stays
        ]
        gone = set(surplus(things, budget))
        goes += [file for place, file in enumerate(stays) if place in gone]
        stays = [file for place, file in enumerate(stays) if place not in gone]
    return goes


def _whose(owner: str) -> tuple[str, str]:
    """Return a directory's party and caller."""
    return ("person", "") if owner in _PERSON else ("others", owner)
