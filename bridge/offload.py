"""Moves work on large values to threads, off the event loop.

Decides when a value is too large for the loop, and how many threads run at once. The work must be
Python code: a single long call of a C function would still hold the interpreter lock.
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
"""The size above which work moves to a thread: characters, plus `VALUE` for each object."""

VALUE = 64
"""The weight of an object: visiting one takes as long as reading this many characters."""

_PLAIN = frozenset({int, float, bool, type(None)})  # Objects without content.

Result = TypeVar("Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("offload")


def estimated_size(value: Any, limit: float = math.inf) -> int:
    """Return a value's size for `LARGE`. Stops when the size exceeds `limit`."""
    size = VALUE
    left: list[Any] = [value]
    while left and size <= limit:
        one = left.pop()
        kind = type(one)
        # Exact types first: `isinstance(one, Mapping)` is slow, and each call's arguments and
        # result pass here several times.
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
    size = 0
    for one in items:
        kind = type(one)
        if kind is str:
            size += len(one)
        elif kind not in _PLAIN:
            left.append(one)
    return size


async def offload(value: Any, work: Callable[[], Result]) -> Result:
    """Return the result of `work` on `value`, in a thread if the value is large.

    A cancelled caller waits for the thread, which still reads the value.
    """
    if estimated_size(value, LARGE) <= LARGE:
        return work()
    try:
        limiter = _limiter.get()
    except LookupError:
        # The event loop competes with each thread for the interpreter lock.
        limiter = anyio.CapacityLimiter(2)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)
