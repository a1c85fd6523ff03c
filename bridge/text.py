"""Text that every client can take.

Owns the repair that text from elsewhere needs before it goes into JSON or onto a terminal, and how
keys that were made alike are told apart.
"""

from __future__ import annotations

from collections.abc import Collection


def valid_text(text: str) -> str:
    """Return `text` with each lone surrogate written out as `\\udc80`; the rest is unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # A surrogate pair is one character that was split; only what stays single is written out.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode()
    return text


def unlike(key: str, taken: Collection[object]) -> str:
    """Return `key`, or another that is not `taken`: keys that are shown alike hide no values."""
    made, number = key, len(taken) + 1
    while made in taken:
        made = f"{key} ({number})"
        # Not one after the other, which takes long where somebody has put all of them there.
        number *= 2
    return made


def counted(count: int, noun: str) -> str:
    """Return how many there are, in words: "1 call", "1,200 calls"."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
