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
from functools import cache
from importlib.resources import files

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
any text can be written so that no one sees it."""


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
_WORD = re.compile(
    r"\\[bfnrt]|(?:://|@)[^\s/?#]+|\w+|(?<=[0-9A-Za-z])[^\w\s](?=[0-9A-Za-z])|"
    r"(?<=\S)(?![\u3000-\u303f\uff00-\uffef])[^\w\s]|(?![\u3000-\u303f\uff00-\uffef])[^\w\s](?=\S)"
)
"""The escapes of JSON, which are part of no word; the host of an address; a word; a mark at one.
Wide marks, such as Chinese texts have, count between ASCII letters or digits."""

_HARMLESS = re.compile("[\"'`<>]+|\\.\\.+")
"""What quotation marks and ellipses pass for, which changes no address."""


def look_alikes(text: str) -> set[int]:
    """Return the positions of characters that pass for ASCII, or are of a word's second script.

    A character passes for ASCII where its compatibility form (NFKC) is ASCII, or Unicode lists it
    as confusable with ASCII (UTS 39). In a word without ASCII letters that counts only if all of
    the word passes for ASCII, so that a word of another script is shown as it is.
    """
    if text.isascii():
        return set()
    found: set[int] = set()
    for word in _WORD.finditer(text):
        written, mixed = word.group(), _ASCII_LETTER.search(word.group())
        passing = [place for place, each in enumerate(written) if _ascii_form(each)]
        if mixed or len(passing) == len(written):
            found.update(word.start() + place for place in passing if not written[place].isascii())
        if mixed:
            found.update(
                word.start() + place for place, each in enumerate(written) if _foreign(each)
            )
    return found


def _ascii_form(character: str) -> str:
    """Return the ASCII text that a character passes for; empty if there is none."""
    if character.isascii():
        return character
    if character in "\u3002\uff61":  # separates the labels of a host, as a dot does (RFC 3490)
        return "."
    plain = unicodedata.normalize("NFKC", character)
    form = plain if plain.isascii() else _confusables().get(character, "")
    return "" if _HARMLESS.fullmatch(form) else form


@cache
def _confusables() -> dict[str, str]:
    """Return Unicode's table of characters that look like ASCII ones: a megabyte, seldom needed."""
    table = files("confusable_homoglyphs").joinpath("confusables.json").read_bytes()
    return {
        character: forms[0]
        for character, alike in json.loads(table).items()
        if (forms := [each["c"] for each in alike if each["c"].isascii()])
    }


def _foreign(character: str) -> bool:
    plain = unicodedata.normalize("NFD", character)[0].isascii()
    wide = unicodedata.east_asian_width(character) == "W"
    return character.isalpha() and not (plain or character < "\u0180" or wide)


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
