"""Finding many secrets in much text at once. Pure.

Owns the forms that a secret may have in a text, and the search. To look for each form by itself
takes milliseconds for each in a large result. Instead one word of a text in so many is looked up in
a set: every occurrence of a form that is long enough covers one of the places looked at, whatever
precedes it. What is found that way is then looked for by itself.
"""

from __future__ import annotations

import base64
import heapq
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, quote_plus

LEAST_ENCODED = 7
"""Characters of an encoded form that is still looked for: shorter ones turn up by chance."""

MAX_FORMS = 100_000
"""Of all secrets together. What is beyond is not looked for; a thousand secrets have fewer."""

MAX_FILLED = 4096
"""Bytes of what stands in the place of an encoded secret; the name in it is cut far earlier."""

FEW = 16
"""Short needles that are quicker looked for one by one."""

_LONG_WORD, _SHORT_WORD = 8, 4
_STRIDES = (64, 32, 16, 8)


@dataclass(frozen=True)
class Needle:
    """One form of a secret.

    Attributes:
        text: What is looked for.
        mark: What is put in its place.
    """

    text: bytes
    mark: bytes


class Needles:
    """Looks for all of some needles.

    Args:
        needles: Longest first counts where several begin at one place.
        escaped: Whether they are looked for in JSON, where what only seems to be one may begin in
            the middle of an escape.
    """

    def __init__(self, needles: Iterable[Needle], *, escaped: bool) -> None:
        found: dict[bytes, Needle] = {}
        for needle in needles:
            if len(found) < MAX_FORMS:
                found.setdefault(needle.text, needle)
        everything = sorted(found.values(), key=lambda needle: -len(needle.text))
        self._escaped = escaped
        self._long = _Words(
            [needle for needle in everything if len(needle.text) >= 2 * _LONG_WORD - 1], _LONG_WORD
        )
        short = [needle for needle in everything if len(needle.text) < 2 * _LONG_WORD - 1]
        several = [needle for needle in short if len(needle.text) >= 2 * _SHORT_WORD - 1]
        if len(several) <= FEW:
            several = []
        self._short = _Words(several, _SHORT_WORD)
        self._tiny = [needle for needle in short if needle not in several]
        self._beginnings: _Beginnings | None = None
        self._everything = everything

    def replaced(self, data: bytes) -> bytes:
        """Return `data` with the marks in place of needles; `data` itself if there are none."""
        found = self._present(data)
        if not found:
            return data
        if not self._escaped and len(found) > 1:
            return _replaced_together(data, found)
        # A needle that is part of another must not cut that one in two.
        found.sort(key=lambda needle: -len(needle.text))
        for needle in found:
            data = self._replace(data, needle)
        return data

    def replaced_so_far(self, data: bytes) -> tuple[bytes, int]:
        """Return what is certain of a text that goes on, and how much of `data` that was.

        What could be the beginning of a needle is not certain, nor is a needle that reaches into
        such a place.
        """
        if self._beginnings is None:
            # Only streams need them; sorting a thousand secrets' forms takes milliseconds.
            self._beginnings = _Beginnings(needle.text for needle in self._everything)
        end = self._beginnings.first_at_the_end(data)
        found = self._present(data)
        moved = bool(found)
        while moved:
            moved = False
            for needle in found:
                size = len(needle.text)
                # One that begins before `end` and ends after it.
                start = data.find(needle.text, max(0, end - size + 1), end + size - 1)
                if start >= 0:
                    end, moved = start, True
        before = data if end == len(data) else data[:end]
        return (self.replaced(before) if found else before), end

    def _present(self, data: bytes) -> list[Needle]:
        view = memoryview(data)
        found = [*self._long.present(view), *self._short.present(view)]
        if self._tiny:
            found += [needle for needle in self._tiny if needle.text in data]
        return found

    def _replace(self, data: bytes, needle: Needle) -> bytes:
        if not self._escaped:
            return data.replace(needle.text, needle.mark)
        parts: list[bytes] = []
        kept = start = 0
        while True:
            start = data.find(needle.text, start)
            if start < 0:
                break
            if not _begins_a_character(data, start):
                start += 1
                continue
            parts += [data[kept:start], needle.mark]
            kept = start = start + len(needle.text)
        return b"".join([*parts, data[kept:]]) if parts else data


class _Words:
    """The needles of one order of length, by words that each of their occurrences covers."""

    def __init__(self, needles: list[Needle], word: int) -> None:
        self._format: Literal["Q", "I"] = "Q" if word == _LONG_WORD else "I"
        self._word = word
        shortest = min((len(needle.text) for needle in needles), default=0)
        strides = _STRIDES if word == _LONG_WORD else (8, 4)
        self._stride = next((n for n in strides if shortest >= n + word - 1), word)
        self._by_word: dict[int, list[Needle]] = {}
        for needle in needles:
            for at in range(self._stride):
                key = _number(needle.text[at : at + word], self._format)
                listed = self._by_word.setdefault(key, [])
                if needle not in listed:
                    listed.append(needle)
        self._words = frozenset(self._by_word)

    def present(self, view: memoryview) -> Iterator[Needle]:
        """Yield each needle that may be there, once."""
        if not self._words or len(view) < self._word:
            return
        whole = len(view) - len(view) % self._word
        looked_at = view[:whole].cast(self._format)[:: self._stride // self._word]
        if self._words.isdisjoint(looked_at):
            return
        seen: set[bytes] = set()
        for word in self._words.intersection(looked_at):
            for needle in self._by_word[word]:
                if needle.text not in seen:
                    seen.add(needle.text)
                    yield needle


class _Beginnings:
    """Tells whether a text ends with what some needle begins with."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        self._sorted = sorted(needles)
        self._longest: int = max(map(len, self._sorted), default=0)
        self._heads = frozenset(
            _number(text[:_SHORT_WORD], "I") for text in self._sorted if len(text) > _SHORT_WORD
        )

    def first_at_the_end(self, data: bytes) -> int:
        """Return the first place from which on `data` is the beginning of a longer needle."""
        size = len(data)
        # The last bytes are fewer than what is looked up at once.
        few = max(0, size - _SHORT_WORD + 1)
        start = max(0, size - self._longest + 1)
        places = sorted(self._candidates(data, start, few))
        places.extend(range(max(few, start), size))
        for place in places:
            if self._begins(data[place:]):
                return place
        return size

    def _candidates(self, data: bytes, start: int, stop: int) -> Iterator[int]:
        """Yield the places between that begin as a needle does, four bytes at a time."""
        view, heads = memoryview(data), self._heads
        for shift in range(start, min(start + _SHORT_WORD, stop)):
            whole = (len(data) - shift) // _SHORT_WORD * _SHORT_WORD
            words = view[shift : shift + whole].cast("I")
            if not heads.isdisjoint(words):
                places = range(shift, shift + whole, _SHORT_WORD)
                yield from (at for at, word in zip(places, words, strict=True) if word in heads)

    def _begins(self, text: bytes) -> bool:
        at = bisect_left(self._sorted, text)
        # The text itself comes first, and those that go on right after it.
        return any(
            len(found) > len(text) and found.startswith(text) for found in self._sorted[at : at + 2]
        )


def _replaced_together(data: bytes, needles: Iterable[Needle]) -> bytes:
    """Return `data` with one mark for needles that overlap, so that no rest of them is left."""
    made = bytearray()
    done = 0
    # Merged as they are found: a large text may hold millions.
    for start, negative_size, mark in heapq.merge(*(_spans(data, needle) for needle in needles)):
        if start >= done:
            made += data[done:start]
            made += mark
        done = max(done, start - negative_size)
    if not done:
        return data
    made += data[done:]
    return bytes(made)


def _spans(data: bytes, needle: Needle) -> Iterator[tuple[int, int, bytes]]:
    """Yield where a needle is, of several that begin at one place the longest first."""
    size = len(needle.text)
    start = data.find(needle.text)
    while start >= 0:
        yield start, -size, needle.mark
        start = data.find(needle.text, start + size)


def _number(word: bytes, format: Literal["Q", "I"]) -> int:
    number: int = memoryview(word).cast(format)[0]
    return number


def _begins_a_character(data: bytes, start: int) -> bool:
    """Tell whether in JSON a character of a text begins at `start`, rather than half an escape."""
    if b"\\" not in data[max(0, start - 5) : start]:
        return True
    if _odd_backslashes(data, start):
        return False
    # In `\\u00e9` five more characters belong to the backslash.
    for back in range(1, 5):
        at = start - back
        if at >= 1 and data[at : at + 1] == b"u" and _odd_backslashes(data, at):
            return False
    return True


def _odd_backslashes(data: bytes, end: int) -> bool:
    before = end
    while before:
        # Piece by piece: a server may put millions of them before what it knows to be a secret.
        piece = data[max(0, before - 4096) : before]
        kept = piece.rstrip(b"\\")
        before -= len(piece) - len(kept)
        if kept:
            break
    return (end - before) % 2 == 1


def text_needles(known: Mapping[str, str]) -> Iterator[Needle]:
    """Yield the forms that secrets have in a text that is no JSON itself, but may hold some.

    Args:
        known: Secret to its mark.
    """
    yield from _forms(known)
    for secret, mark in known.items():
        with suppress(UnicodeEncodeError):
            # A variable of the environment holds any bytes, and Python writes them as surrogates.
            raw = secret.encode("utf-8", "surrogateescape")
            if raw != secret.encode("utf-8", "surrogatepass"):
                shown = mark.encode("ascii", "replace")
                yield Needle(raw, shown)
                yield Needle(quote(raw, safe="").encode("ascii"), shown)
                yield from _encoded(raw, shown)


def _forms(known: Mapping[str, str]) -> Iterator[Needle]:
    for secret, mark in known.items():
        shown = mark.encode("ascii", "replace")
        data = secret.encode("utf-8", "surrogatepass")
        yield Needle(data, shown)
        for form in _written(secret):
            yield Needle(form.encode("utf-8", "surrogatepass"), shown)
        yield from _encoded(data, shown)


def json_needles(known: Mapping[str, str]) -> Iterator[Needle]:
    """Yield the forms that they have in a line of JSON."""
    for needle in _forms(known):
        text = needle.text.decode("utf-8", "surrogatepass")
        for form in _escaped(text):
            yield Needle(form.encode("utf-8", "surrogatepass"), needle.mark)


def _written(secret: str) -> set[str]:
    """Return a secret as JSON in a text has it, JSON in a text of that, and addresses."""
    once = _escaped(secret)
    twice = {again for form in once for again in _escaped(form)}
    percent = {quote(secret, safe="", errors="replace"), quote(secret, errors="replace")}
    percent.add(quote_plus(secret, errors="replace"))
    lower = {_lower_escapes(form) for form in percent}
    # What a browser leaves alone in a query.
    percent.add(quote(secret, safe="/:@!$'()*,;~", errors="replace"))
    return {*once, *twice, *percent, *lower} - {secret}


def _escaped(text: str) -> set[str]:
    """Return the ways in which encoders write a text into JSON."""
    forms = set()
    for ascii_only in (True, False):
        form = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        # Some write every slash so.
        forms |= {form, form.replace("/", "\\/")}
    return forms


def _lower_escapes(text: str) -> str:
    head, *rest = text.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


def _encoded(data: bytes, mark: bytes) -> Iterator[Needle]:
    """Yield the Base64 forms, at each place that it may have in what is encoded, and hexadecimal.

    A mark in Base64 is as long as what it replaces, so that what follows decodes as before.
    """
    filled = mark[: len(data)].ljust(min(len(data), MAX_FILLED), b"*").ljust(len(data), b"*")
    for before in range(3):
        lost = (0, 2, 3)[before]
        full = (before + len(data)) * 8 // 6
        if full - lost < LEAST_ENCODED:
            continue
        ways = (base64.b64encode, base64.urlsafe_b64encode)
        for encode in ways:
            text = encode(bytes(before) + data)[lost:full]
            yield Needle(text, encode(bytes(before) + filled)[lost:full])
    for digits in (data.hex(), data.hex().upper()):
        yield Needle(digits.encode(), filled.hex().encode())
