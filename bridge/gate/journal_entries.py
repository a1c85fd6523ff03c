"""A call as a journal keeps it: what it is known by, and how much memory it takes.

Owns when two calls are like each other, and the estimate of a result's size. Which calls are kept,
and for how long, is `journal`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from bridge.gate.outcomes import Outcome
from bridge.model import OWN_SERVER, Effect, Json

ENTRY_BYTES = 512
"""Of an entry without result and names, with its places in lists and dicts; rounded up."""

OWN = OWN_SERVER
"""In a server's place, for what the bridge itself was asked and keeps. It is never read anew: an
update is made from what was read, and would be another."""

_HOLDERS = frozenset({dict, list, tuple})
"""Types of JSON values with others in them."""

# What comes from JSON has no circles, and to look for them is half of the work.
_CANONICAL = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False
)


@dataclass(eq=False, slots=True)
class Entry:
    """One call.

    Attributes:
        number: The call's in its run, as messages and the audit log have it.
        result: None if there is none, or it was too large to keep.
        size: Of it all, in memory.
        server_definition: Digest of the server's definition at that time; empty if not known.
    """

    server: str
    tool: str
    key: bytes
    effect: Effect
    number: int = 0
    outcome: Outcome = "unknown"
    result: dict[str, Json] | None = None
    run_id: str = ""
    size: int = 0
    server_definition: str = ""


def key_of(server: str, tool: str, arguments: Mapping[str, Json]) -> bytes:
    """Return what is equal for like calls, and only for them."""
    try:
        text = _CANONICAL.encode([server, tool, arguments])
    except (RecursionError, TypeError, ValueError):
        # Nested so deeply that most servers cannot be sent it. All of these count as one call, of
        # which a journal keeps no result: better refused than repeated.
        return b""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def memory_of(value: Json, limit: int) -> int | None:
    """Return the bytes that a value takes up in memory; None if they are more than `limit`.

    Counts objects, because a megabyte of brackets is tens of megabytes of lists. Looks at no more
    of them than it takes to reach the limit.
    """
    size = sys.getsizeof(value)
    left: list[Json] = [value]
    while left and size <= limit:
        one = left.pop()
        if isinstance(one, dict):
            size += _of_items(one, left) + _of_items(one.values(), left)
        elif isinstance(one, list | tuple):
            size += _of_items(one, left)
    return size if size <= limit else None


def _of_items(items: Iterable[Json], left: list[Json]) -> int:
    """Return the bytes of items themselves, and put those that hold others on a list."""
    size = 0
    for one in items:
        size += sys.getsizeof(one)
        if type(one) in _HOLDERS:
            left.append(one)
    return size


class Room:
    """The memory of all journals together.

    Args:
        evict: Gives back what can be done without; says whether there was anything.
    """

    def __init__(self, limit: int, evict: Callable[[], bool] = lambda: False) -> None:
        self._limit = limit
        self._evict = evict
        self.used = 0

    def take(self, size: int) -> bool:
        """Take as much, or nothing; say which."""
        while self.used + size > self._limit:
            if not self._evict():
                return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Give back."""
        self.used -= size
