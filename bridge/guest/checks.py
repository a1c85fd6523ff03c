"""Checks of what programs pass to the helpers of `mcp.runtime`."""

from __future__ import annotations

from bridge.guest.placeholders import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_SEARCH_LIMIT = 50
"""Most tools that one search returns; more would cost the reader what searching saves."""

DETAILS = ("summary", "full")


def text(name: str, value: Any) -> str:
    """Return a text that is not empty, or raise."""
    if isinstance(value, Unknown):
        from bridge.guest.held import stop

        stop(value, "names what it asks for (%s) by" % name)
    if not isinstance(value, str):
        raise TypeError("%s must be a string, not %s" % (name, type(value).__name__))
    if not value.strip():
        raise ValueError("%s is empty" % name)
    return value


def detail(value: Any) -> str:
    """Return a level of detail, or raise."""
    if value not in DETAILS:
        raise ValueError(
            "detail must be one of %s, not %r" % (", ".join(map(repr, DETAILS)), value)
        )
    return str(value)


def limit(value: Any) -> int:
    """Return how many tools a search may return, or raise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("limit must be an integer, not %s" % type(value).__name__)
    if value < 1:
        raise ValueError("limit must be at least 1, not %d" % value)
    return min(value, MAX_SEARCH_LIMIT)
