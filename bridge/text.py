"""Cleans and shortens text from other programs for JSON and terminals, and counts its tokens.

Also makes duplicate keys distinct.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any

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
    return _escape(text, keep, lambda each: each.encode("unicode_escape").decode("ascii"))


def visible_json(text: str) -> str:
    """Return JSON with control and format characters escaped (`\\u202e`).

    The value is unchanged, because outside of strings JSON only has newlines.
    """
    return _escape(text, "\n", lambda each: json.dumps(each)[1:-1])


def _escape(text: str, keep: str, form: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(
        form(each) if unicodedata.category(each) in _OBEYED and each not in keep else each
        for each in text
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


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SCAN_FACTOR = 8
"""Characters of input that are read for each character of a line."""

_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Includes tags and variation selectors, which models read and people do not see."""


def clip(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: max(limit - 1, 0)].rstrip() + "…"


def one_line(text: str, limit: int) -> str:
    flat = re.sub(r"\s+", " ", text[: limit * _SCAN_FACTOR])
    flat = _UNPRINTABLE.sub("", flat).strip()
    return clip(valid_text(flat), limit)


def paragraphs(text: str) -> list[str]:
    """Return the lines of `text`, without characters that some viewers take for line breaks."""
    return [_UNPRINTABLE.sub("", line.replace("\t", " ")) for line in text.splitlines()]


def first_sentence(text: str, limit: int) -> str:
    """Return the first sentence of `text` as one line of at most `limit` characters.

    A paragraph's end also ends a sentence. A full stop must precede a new sentence, so "e.g. this"
    and "v1.2" stay whole.
    """
    paragraph = text.strip()[: limit * _SCAN_FACTOR].split("\n\n", 1)[0]
    flat = one_line(paragraph, limit * _SCAN_FACTOR)
    end = re.search(r"[.!?](?=\s+[^\sa-z])", flat)
    return clip(flat[: end.end()] if end else flat, limit)


def join_names(names: Sequence[str], limit: int, others: str = "") -> str:
    """Return as many names as fit `limit` characters, and the number of the others."""
    text = ", ".join(names)
    if len(text) <= limit:
        return text
    ends = accumulate(len(name) + 2 for name in names)
    room = limit - len(f" and 1,000,000 more{others}")
    fit = sum(end <= room for end in ends)
    rest = f"{len(names) - fit:,} more{others}"
    return f"{', '.join(names[:fit])} and {rest}" if fit else rest


def list_names(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


_PIECE = re.compile(
    r"[^\r\n\w]?(?:[A-Z]*[^\W\d_A-Z]+|[A-Z]+)"
    r"|\d{1,3}"
    r"| ?[^\s\w]+[\r\n/]*"
    r"|_+"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
"""The pieces into which the tokenizer splits a text; most are one token."""


def _kind(code: int) -> str:
    character = chr(code)
    if code > 127:
        # Most characters with these first bytes are marks; most others are letters.
        return "p" if code in (0xC2, 0xE2, 0xF0) else "x"
    if character.isalpha():
        return "a" if character.islower() else "A"
    if character.isspace():
        return "n" if character == "\n" else "s"
    return "0" if character.isdigit() else {'"': "q", "'": "q", "_": "x"}.get(character, "p")


_KINDS = "".join(map(_kind, range(256))).encode()
"""The class of each byte: lower or upper case, digit, newline, space, quote, mark, other."""

_CONTINUED = bytes(range(0x80, 0xC0))  # Continuation bytes of UTF-8.
_ALIKE = bytes.maketrans(b"Aq", b"ap")  # Merge both cases, and all marks.

_MORE = (
    # A capitalised word directly after a mark, as in rows: ",Paris".
    (b"pAaaa", 1.25),
    (b"qAaaa", 1.25),
    (b"paaaa", 0.25),
    (b"AAAA", 0.5),
)
_MORE_ALIKE = (
    # Long words, spaces and marks.
    (b"a" * 7, 0.12),
    (b"a" * 16, 3.0),
    (b"s" * 64, 1.0),
    (b"pppp", 0.5),
)
"""Patterns of pieces with several tokens, and their average number of further tokens."""

_MIXED = re.compile(b"aA{1,3}a?[A0]")
_MIXED_MORE = 1.6  # Further tokens of mixed case, as in base64.

_MORE_FOREIGN = ((0xC0, 0xE0, 0.1), (0xE0, 0xF0, 0.7), (0xF0, 0x100, 1.5))
"""Further tokens of non-ASCII characters by first byte: letters, ideographs, pictures."""


def count_tokens(text: str) -> int:
    """Estimate the tokens of `text` for a model, to choose, cut and compare, not for bills.

    Within 10 % of the tokenizer o200k_base for prose, rows, digits and code, and 20 % for other
    languages and tokenizers; see `tests/testdata/tokens.json`. Random letters may be worse. A
    thousand tokens take a third of a millisecond.
    """
    found = float(len(_PIECE.findall(text)))
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text):
        for first, last, more in _MORE_FOREIGN:
            found += more * (len(data) - len(data.translate(None, bytes(range(first, last)))))
    classes = data.translate(_KINDS, _CONTINUED)
    found += _MIXED_MORE * len(_MIXED.findall(classes))
    for kind, most in ((classes, _MORE), (classes.translate(_ALIKE), _MORE_ALIKE)):
        for sign, more in most:
            found += more * kind.count(sign)
    return math.ceil(found)


def definition_text(name: str, description: str, input_schema: Mapping[str, Any]) -> str:
    """Return a tool's definition as a client gives it to the model.

    Clients use different formats with the same content.
    """
    definition = {"name": name, "description": description, "input_schema": input_schema}
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"), default=str)
