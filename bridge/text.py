"""Text that every client can take.

Owns the repair that text from elsewhere needs before it goes into JSON or onto a terminal, and how
keys that were made alike are told apart.
"""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from collections.abc import Collection

_OBEYED = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Categories of the characters that a terminal obeys, or that turn, hide or break text."""


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\])*(?:'|$)|"[^"']*'[^"]*(?:"|$))""", re.DOTALL)


def without_values(text: str) -> str:
    """Return a message about a setting without the values that `repr` put in quotes, whole or cut.

    A model reads it, and a value may be a secret that was put in the wrong place.
    """
    # `repr` takes double quotes only for what has a single one in it; others are ours.
    return _QUOTED.sub("[its value]", text)


def valid_text(text: str) -> str:
    """Return `text` with each lone surrogate written out as `\\udc80`; the rest is unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # A surrogate pair is one character that was split; only what stays single is written out.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode()
    return text


_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_SHAPELESS = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and signs that show nothing: fillers, and the 256 variation selectors, with which
any text can be written so that nobody sees it."""


def is_hidden(character: str) -> bool:
    """Return whether a character shows nothing, or turns or breaks the text around it."""
    category = unicodedata.category(character)
    if category in _HIDDEN or (category == "Zs" and character != " "):
        return True
    return _SHAPELESS.match(character) is not None


def visible(text: str, keep: str = "\n\t") -> str:
    """Return text from elsewhere with its control and format characters written out.

    A terminal obeys them: they move the cursor, change the title, hide or reverse what is shown.
    For JSON there is `visible_json`.

    Args:
        keep: The characters that are left alone all the same.
    """
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in _OBEYED and character not in keep
        else character
        for character in text
    )


def visible_json(text: str) -> str:
    """Return JSON with the same characters escaped as JSON escapes them (`\\u202e`).

    It is as valid as before and means the same: outside of strings there are only newlines.
    """
    if text.isprintable():
        return text
    return "".join(
        json.dumps(character)[1:-1]
        if unicodedata.category(character) in _OBEYED and character != "\n"
        else character
        for character in text
    )


class VisibleDecoder:
    """Decodes a stream for a terminal, in pieces of any size, with nothing in it that it obeys.

    But for returns: they reach no further than the line that the stream itself has begun, and bars
    are drawn with them. Bytes that are no UTF-8 are written out (`\\xff`). What is incomplete waits
    for the next piece.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Return what the next piece of the stream says."""
        return visible(self._decoder.decode(data, final), keep="\n\t\r")


def escape_look_alikes(name: str, *, all_letters: bool = False) -> str:
    """Return a name with letters escaped that look like others.

    Args:
        all_letters: Escape all letters that are not Latin; else only in a name with ASCII letters.
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
_WORD = re.compile(r"\\[bfnrt]|(?:://|@)[^\s/?#]+|\w+")
"""The escapes of JSON, which are part of no word; the host of an address; a word."""


def look_alikes(text: str) -> set[int]:
    """Return the positions of letters that look like ASCII letters in their word or host.

    Letters of Europe's languages written in Latin do not, nor do wide ones, such as Chinese.
    """
    if text.isascii():
        return set()
    return {
        word.start() + place
        for word in _WORD.finditer(text)
        if _ASCII_LETTER.search(word.group())
        for place, character in enumerate(word.group())
        if character.isalpha() and _may_pass_for_another(character)
    }


def _may_pass_for_another(character: str) -> bool:
    if character in "\u0131\u0138\u017f":
        return True
    plain = unicodedata.normalize("NFD", character)[0].isascii()
    return not (plain or character < "\u0180" or unicodedata.east_asian_width(character) == "W")


def distinct_key(key: str, taken: Collection[object]) -> str:
    """Return `key`, or a variant that is not in `taken`, so that equal keys hide no values."""
    made, number = key, len(taken) + 1
    while made in taken:
        made = f"{key} ({number})"
        # Not counting by one, which takes long if all of those keys exist.
        number *= 2
    return made


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 call", "1,200 calls"."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
