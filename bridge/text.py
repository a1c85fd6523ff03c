"""Cleans and shortens text from other programs for JSON and terminals.

Also makes duplicate keys distinct.
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
"""Categories of characters that control a terminal, or that reverse, hide or break text."""


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\])*(?:'|$)|"[^"']*'[^"]*(?:"|$))""", re.DOTALL)


def without_values(text: str) -> str:
    """Return a message about a setting with each quoted value replaced.

    A model reads the message, and a value may be a misplaced secret.
    """
    # `repr` uses double quotes only around a single quote; other double quotes are ours.
    return _QUOTED.sub("[its value]", text)


def valid_text(text: str) -> str:
    """Return `text` with each lone surrogate escaped as `\\udc80`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Join surrogate pairs first, so that only lone surrogates are escaped.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode()
    return text


_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_SHAPELESS = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters and marks: fillers, and the 256 variation selectors, which can encode any text.
"""


def is_hidden(character: str) -> bool:
    """Return whether a character is invisible, or reverses or breaks the text around it."""
    category = unicodedata.category(character)
    if category in _HIDDEN or (category == "Zs" and character != " "):
        return True
    return _SHAPELESS.match(character) is not None


def visible(text: str, keep: str = "\n\t") -> str:
    """Return text with its control and format characters escaped.

    A terminal obeys them: they move the cursor, change the title, hide or reverse text. For JSON
    use `visible_json`.

    Args:
        keep: The characters that are not escaped.
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
    """Return JSON with control and format characters escaped (`\\u202e`).

    The value is unchanged, because outside of strings JSON only has newlines.
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
    """An incremental decoder that makes a byte stream safe for a terminal.

    Carriage returns stay: programs draw progress bars with them, and they affect only the stream's
    own line. Invalid UTF-8 is escaped (`\\xff`). An incomplete character waits for the next piece.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def decode(self, data: bytes, *, final: bool = False) -> str:
        return visible(self._decoder.decode(data, final), keep="\n\t\r")


def escape_look_alikes(name: str, *, all_letters: bool = False) -> str:
    """Return a name with non-Latin letters escaped, since they may imitate others.

    Args:
        all_letters: Escape them in every name, not only in a name with ASCII letters.
    """
    if name.isascii() or not (all_letters or _ASCII_LETTER.search(name)):
        return name
    return "".join(
        # A Latin letter with an accent imitates no other.
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
"""An escape of JSON, which is part of no word; an address's host; a word; a mark next to one. Wide
marks, as in Chinese texts, count between ASCII letters or digits.
"""

_HARMLESS = re.compile("[\"'`<>]+|\\.\\.+")
"""ASCII forms of quotation marks and ellipses, which cannot change an address."""


def look_alikes(text: str) -> set[int]:
    """Return the positions of characters that imitate ASCII, or mix scripts within a word.

    A character imitates ASCII if its compatibility form (NFKC) is ASCII, or Unicode lists it as
    confusable with ASCII (UTS 39). In a word without ASCII letters, these characters count only if
    the whole word imitates ASCII. A word of another script is thus unchanged.
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
    if character.isascii():
        return character
    if character in "\u3002\uff61":  # Separate labels of a host name, like a dot (RFC 3490).
        return "."
    plain = unicodedata.normalize("NFKC", character)
    form = plain if plain.isascii() else _confusables().get(character, "")
    return "" if _HARMLESS.fullmatch(form) else form


@cache
def _confusables() -> dict[str, str]:
    """Return Unicode's table of ASCII look-alikes. Lazy, because it has a megabyte."""
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


def mark_gaps(text: str, least: int = 9) -> str:
    """Return text with the lengths of wide gaps, behind which a client could begin a line."""
    return re.sub(rf" {{{least},}}", lambda gap: f"[{len(gap[0])} spaces]", text)


def readable_json(value: object) -> str:
    """Return a value as JSON for a reader, with other types as Python writes them."""
    return json.dumps(value, ensure_ascii=False, default=str)


def cut_middle(text: str, size: int, more: str = "more characters") -> str:
    """Return the beginning and the end of a long text, with the count of the others between."""
    if len(text) <= size:
        return text
    # Keep the end too: a program can hide an argument's relevant part behind filler.
    tail = size // 4
    return f"{text[: size - tail]}… ({len(text) - size:,} {more}) …{text[-tail:]}"


def distinct_key(key: str, taken: Collection[object]) -> str:
    made, number = key, len(taken) + 1
    while made in taken:
        made = f"{key} ({number})"
        # Counting by one would take quadratic time for many equal keys.
        number *= 2
    return made


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
