"""Runs work on values whose size others choose in a thread, off the event loop.

Owns how much is too much for the loop, and how many such works go on at once. What the work is, and
that it can be done in a thread, is the caller's affair: Python code there lets the loop have its
turn every few milliseconds, one long call of a built-in does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from bridge.large_text import LargeText

LARGE = 128 * 1024
"""From here on a value is worth a thread: characters, and `VALUE` for each object."""

VALUE = 64
"""What an object counts: to look at one takes as long as to look through so many characters."""

_PLAIN = frozenset({int, float, bool, type(None)})  # What has nothing in it.

Result = TypeVar("Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("offload")


def estimated_size(value: Any, limit: float = math.inf) -> int:
    """Return how much work there is in a value, or more than `limit` if it is more.

    Looks at no more of it than that takes.
    """
    size = VALUE
    left: list[Any] = [value]
    while left and size <= limit:
        one = left.pop()
        kind = type(one)
        # By type first, and what is in an object at once: this looks at the arguments and the
        # result of each call several times, and to ask what is a mapping takes longest of all.
        if kind is str or kind is bytes or kind is LargeText:
            size += len(one)
        elif kind in _PLAIN:
            continue
        elif kind is dict or isinstance(one, Mapping):
            size += 2 * VALUE * len(one)
            if size <= limit:
                size += _add_items(one, left) + _add_items(one.values(), left)
        elif isinstance(one, (list, tuple)):
            size += VALUE * len(one)
            if size <= limit:
                size += _add_items(one, left)
    return size


def _add_items(items: Iterable[Any], left: list[Any]) -> int:
    """Return the characters of the texts among items, and put what is no text on a list."""
    size = 0
    for one in items:
        kind = type(one)
        if kind is str:
            size += len(one)
        elif kind not in _PLAIN:
            left.append(one)
    return size


async def offload(value: Any, work: Callable[[], Result]) -> Result:
    """Return what `work` on `value` returns; it is done in a thread if the value is large.

    Cancelled, it is waited for: what it works on must not change under its hands.
    """
    if estimated_size(value, LARGE) <= LARGE:
        return work()
    try:
        limiter = _limiter.get()
    except LookupError:
        # Of more, each would make the event loop wait for its turn once more.
        limiter = anyio.CapacityLimiter(2)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)
