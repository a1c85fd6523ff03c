"""Text that every client can take.

Owns the repair that text from elsewhere needs before it goes into JSON or onto a terminal, and how
keys that were made alike are told apart.
"""

from __future__ import annotations

import re
import unicodedata
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


def visible(text: str, keep: str = "\n\t") -> str:
    """Return text from elsewhere with its control and format characters written out.

    A terminal obeys them: they move the cursor, change the title, hide or reverse what is shown.
    Never for a program's own output, nor for JSON, which must stay as they are.

    Args:
        keep: The characters that are left alone all the same.
    """
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cf") and character not in keep
        else character
        for character in text
    )


def written_out(name: str, *, all_letters: bool = False) -> str:
    """Return a name with the letters written out that may pass for others.

    Args:
        all_letters: Every one that is not Latin; else only where ASCII letters are among them.
    """
    if name.isascii() or not (all_letters or _ASCII_LETTER.search(name)):
        return name
    return "".join(
        # One with an accent is what it seems to be.
        character
        if unicodedata.normalize("NFD", character)[0].isascii()
        else character.encode("unicode_escape").decode("ascii")
        for character in name
    )


_ASCII_LETTER = re.compile("[A-Za-z]")


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
