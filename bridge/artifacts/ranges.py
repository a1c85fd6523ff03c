"""Parts of what is kept: which bytes or lines are asked for, and what of them one answer has. Pure.

Owns what may follow the "?" of a URI, the bound on one answer, and how the rest is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl

from bridge.errors import InvalidRequestError

MAX_ANSWER = 1024 * 1024
"""Bytes of content in one answer; clients have limits of a few megabytes on a message."""

_CHARACTER = 4
"""Bytes that a character of UTF-8 takes at most."""

SPARE = 2 * _CHARACTER
"""Bytes that are looked at beyond what is wanted: a character may begin late, and end later."""

_NUMBER = re.compile(r"[0-9]{1,15}")
_LINES = re.compile(r"(?P<first>[0-9]{0,15})(?P<dash>-)?(?P<last>[0-9]{0,15})")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What of something is asked for: bytes, or lines.

    Attributes:
        length: None for all that follows.
        first: The first line, from 1; 0 where bytes are asked for; below it, from the end.
        last: The last line, which is in it; None for all that follow.
    """

    offset: int = 0
    length: int | None = None
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where lines are.

    Attributes:
        start, end: Bytes.
        first, last: The numbers of the lines that there are between; `last` is lower if none.
        total: How many lines there are in all.
    """

    start: int
    end: int
    first: int
    last: int
    total: int


def parse_part(query: str) -> Part:
    """Return what the query of a URI asks for.

    Raises:
        InvalidRequestError: It asks for nothing that there could be; the text says what would do.
    """
    given: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise _unusable(query) from None
    for key, value in pairs:
        if key not in ("offset", "length", "lines") or key in given:
            raise _unusable(query)
        given[key] = value
    lines = given.pop("lines", None)
    if lines is not None:
        if given:
            raise _unusable(query)
        return _lines(lines, query)
    if not all(_NUMBER.fullmatch(value) for value in given.values()):
        raise _unusable(query)
    length = given.get("length")
    return Part(
        offset=int(given.get("offset", "0")), length=None if length is None else int(length)
    )


def _lines(text: str, query: str) -> Part:
    found = _LINES.fullmatch(text)
    if found is None:
        raise _unusable(query)
    first, last = found["first"], found["last"]
    if not first:
        if not last or not int(last):
            raise _unusable(query)
        return Part(first=-int(last))
    if not found["dash"]:
        last = first
    part = Part(first=int(first), last=int(last) if last else None)
    if part.first < 1 or (part.last is not None and part.last < part.first):
        raise _unusable(query)
    return part


def _unusable(query: str) -> InvalidRequestError:
    message = f"{query!r:.80} is no part of a resource."
    return InvalidRequestError(
        message,
        remedy="Use ?offset=BYTES&length=BYTES, or for text ?lines=100-200, ?lines=100- or "
        "?lines=-50 for the last fifty.",
    )


def line_span(pieces: Callable[[], Iterable[bytes]], first: int, last: int | None) -> Span:
    """Return where lines are.

    Args:
        pieces: Returns the content, part by part, each time it is called.
        first: From 1; below 0, so many from the end.
        last: None for the last there is.
    """
    if first < 0:
        total = _after(pieces(), ()).total
        first, last = max(total + first + 1, 1), None
    beyond = None if last is None else max(last, first - 1)
    found = _after(pieces(), (first - 1,) if beyond is None else (first - 1, beyond))
    start = found.places.get(first - 1, found.size)
    end = found.size if beyond is None else found.places.get(beyond, found.size)
    last = found.total if beyond is None else min(beyond, found.total)
    return Span(start=start, end=end, first=first, last=last, total=found.total)


@dataclass(frozen=True, kw_only=True)
class _Found:
    places: dict[int, int]
    total: int
    size: int


def _after(pieces: Iterable[bytes], counts: tuple[int, ...]) -> _Found:
    """Return the places that so many ends of lines are before."""
    places = {0: 0}
    seen, size, end = 0, 0, b"\n"
    for piece in pieces:
        more = piece.count(b"\n")
        for count in counts:
            if seen < count <= seen + more:
                places[count] = size + _nth(piece, count - seen) + 1
        seen, size, end = seen + more, size + len(piece), piece[-1:] or end
    return _Found(places=places, total=seen + (end != b"\n"), size=size)


def _nth(piece: bytes, number: int) -> int:
    """Return where the so-manieth end of a line is, of at least so many."""
    low, high = 0, len(piece)
    # By halves: to look for one after the other takes long where there are a million.
    while high - low > 1:
        middle = (low + high) // 2
        before = piece.count(b"\n", low, middle)
        if number <= before:
            high = middle
        else:
            low, number = middle, number - before
    return low


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What of a part one answer has.

    Attributes:
        start, end: Bytes.
        text: None where it is not text.
    """

    start: int
    end: int
    text: str | None = None


def text_answer(data: bytes, start: int, wanted: int, size: int) -> Answer:
    """Return as much as is wanted of a text, in whole characters, and at least one.

    Args:
        data: What is there from `start` on; `wanted` bytes and `SPARE` more, if there are.
        size: Of the whole.
    """
    begin, end = 0, min(wanted, len(data))
    while start > 0 and begin < min(len(data), _CHARACTER - 1) and _inside(data, begin):
        begin += 1
    cut = end
    while cut > begin and end - cut < _CHARACTER and _inside(data, cut):
        cut -= 1
    if cut <= begin:
        cut = min(begin + 1, len(data)) if wanted else begin
        while cut < len(data) and cut - begin < _CHARACTER and _inside(data, cut):
            cut += 1
    try:
        text = data[begin:cut].decode()
    except UnicodeDecodeError:
        return Answer(start=start, end=min(start + max(end, 0), size))
    return Answer(start=start + begin, end=start + cut, text=text)


def _inside(data: bytes, place: int) -> bool:
    """Tell whether a place is within a character, and not before one."""
    return place < len(data) and data[place] & 0xC0 == 0x80
