"""Takes secrets out of what reaches a sandbox, a model or a log.

Owns the encoded forms in which a secret is looked for, the mark that replaces it, and that JSON
keeps its shape. `redaction_shapes` finds values that only look like a secret.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import ahocorasick  # type: ignore[import-not-found]

from bridge.gate.redaction_shapes import (
    MASK_BEGINS,
    could_be_password,
    mask,
    mask_secrets,
    names_secret,
)
from bridge.guest.protocol import json_text
from bridge.model import Json
from bridge.text import distinct_key

MAX_SECRETS = 1000  # A file of somebody else's environment can have any number.
MAX_SECRET_CHARS = 64 * 1024  # Of one that is looked for; keys and certificates have some thousand.
_PORTION = 64 * 1024  # Bytes that are searched without a pause.

_WORD = 8
"""Bytes that are looked up at once, where a text is asked quickly whether it has a long form."""

_LONG = 2 * _WORD - 1  # Bytes of which a word at a multiple of eight is part, wherever they stand.
MARK = re.compile(rb"\[redacted: [^\[\]]{1,200}\]")  # What reads like a mark, whole.

_OTHER = re.compile(rf"{re.escape(MASK_BEGINS)}(?:[^\[\]]{{1,200}}\])?")

_DEEPER = "[nested too deeply to be shown]"

_NO_MASK = f"[the text: {MASK_BEGINS[1:]}"
"""What a text has, where it is shown, that only reads like a mask."""

_UNSAFE = re.compile(r"[^ !#-Z^-~]")  # What would have to be escaped in JSON.

_as_json = json_text.encoder(allow_nan=True)


Note = Callable[[str, str], None]  # Takes a mark and the text that it replaced.


class _Span(NamedTuple):
    """Where a secret is, or several that overlap; the mark is that of the first, or longest."""

    start: int
    end: int
    mark: bytes


class Redactor:
    """Takes known values out of texts, JSON and frames.

    There is one for a bridge. Its secrets may change; keep `revision` with redacted data.

    Args:
        known: Secret to its name in marks ("GITHUB_TOKEN of github").
        words: Those of them that are found only as whole words.
    """

    def __init__(self, known: Mapping[str, str] | None = None, words: Collection[str] = ()) -> None:
        self._known: dict[str, str] = {}
        self._words: Collection[str] = ()
        self._texts = _Needles((), escaped=False)
        self._frames = self._marks = _Needles((), escaped=True)
        self._note: Note | None = None
        self._plain: Collection[str] = ()
        self.marks: dict[str, str] = {}
        self.revision = 0
        self.learn(known or {}, words)

    def __repr__(self) -> str:
        return f"<Redactor secrets={len(self._known)}>"

    def learn(self, known: Mapping[str, str], words: Collection[str] = ()) -> None:
        wanted = {
            secret: _mark(name)
            for secret, name in list(known.items())[:MAX_SECRETS]
            if secret and len(secret) <= MAX_SECRET_CHARS
        }
        if (wanted, words) == (self._known, self._words):
            return
        self._known, self._words = wanted, words
        self._texts = _Needles(text_forms(wanted, words), escaped=False)
        self._frames = _Needles(json_forms(wanted, words), escaped=True)
        for secret, mark in wanted.items():
            for _, shown, _ in text_forms({secret: mark}):
                self.marks[shown.decode()] = mark[len(MASK_BEGINS) : -1]
        self._marks = _Needles(mark_forms(self.marks, wanted), escaped=True)
        self.revision += 1

    def noting(self, note: Note) -> Redactor:
        return self._with(_note=note)

    def _with(self, **changes: object) -> Redactor:
        view = object.__new__(Redactor)
        view.__dict__.update(self.__dict__, **changes)
        return view

    def find_marks(self, line: bytes) -> list[_Span]:
        """Return where marks are in a line of JSON; changed and cut ones have an empty mark."""
        return self._marks.spans(line)

    def text(self, text: str) -> str:
        if not self._known or not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        cleared = self.encoded(data)
        return text if cleared is data else cleared.decode("utf-8", "surrogatepass")

    def encoded(self, data: bytes) -> bytes:
        return self._texts.replaced(data, note=self._note) if self._known and data else data

    def stream(self) -> ClearedStream:
        return ClearedStream(self)

    def frame(self, line: bytes) -> bytes:
        """Return a line of JSON without known secrets; raises `ValueError` if it is no JSON."""
        cleared = self._frames.replaced(line, note=self._note) if self._known else line
        if cleared is line:
            return line
        try:
            try:
                json.loads(cleared)
            except ValueError:
                # It also stands outside of texts, as a number or as marks between values.
                text = json.dumps(self._clear_texts(json.loads(line)), separators=(",", ":"))
                cleared = text.encode("ascii") + (b"\n" if line.endswith(b"\n") else b"")
        except RecursionError:
            raise ValueError(_DEEPER) from None
        return cleared

    def _clear_texts(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._clear_texts(item) for key, item in value.items()}
        return [self._clear_texts(item) for item in value] if isinstance(value, list) else value

    def value(self, value: Json) -> Json:
        """Return a value without known secrets, keys included; the very same if there are none."""
        if not self._known or value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.text(value)
        try:
            line = _as_json(value).encode("utf-8", "surrogatepass")
        except RecursionError:
            raise ValueError("the value is nested too deeply") from None
        cleared = self.frame(line)
        if cleared is line:
            return value
        return json.loads(cleared.decode("utf-8", "surrogatepass"))

    def arguments(self, value: Json, schema: Json = None, *, marks: bool = False) -> Json:
        """Return arguments as questions, plans and the audit log show them.

        Known secrets are left out, and nothing else is: what has the format of a secret, and the
        value of a parameter that names one, have a mask with their ends, length and digest.

        Args:
            schema: Of the tool's arguments. A name that it does not have masks nothing: a program
                could hide what it likes under one.
            marks: Whether known marks are shown as such: the gate replaces or refuses those.
        """
        if marks:
            return self._with(_plain=self.marks).arguments(value, schema)
        texts = _texts(value)
        if texts is not None:
            # To search them all at once takes a fifth of the time, and this is done for each call.
            # A line feed is in none of the formats, and whatever precedes or follows one of them
            # may be a line feed. What seems to reach over two texts is looked at again.
            together = "\n".join(texts)
            if self.shown(together) is together:
                return value
        return self._shown(value, _Schema(schema), 0)

    def shown(self, text: str) -> str:
        if MASK_BEGINS in text:
            text = _OTHER.sub(
                lambda m: m[0] if m[0] in self._plain else _NO_MASK + m[0][len(MASK_BEGINS) :], text
            )
        return mask_secrets(self.text(text))

    def _shown(self, value: Json, schema: _Schema, depth: int) -> Json:
        if isinstance(value, str):
            return self.shown(value)
        if not isinstance(value, (dict, list, tuple)):
            return value
        if depth >= 100:
            return _DEEPER
        if isinstance(value, dict):
            found: dict[Json, Json] = {}
            for key, item in value.items():
                shown = distinct_key(self.shown(key), found) if isinstance(key, str) else key
                secret = isinstance(item, str) and schema.names_secret(key)
                # A known secret has no mask that shows some of it.
                if secret and could_be_password(item) and self.text(item) is item:
                    found[shown] = mask(item)
                else:
                    found[shown] = self._shown(item, schema.below(key), depth + 1)
            return found
        items = schema.below(None)
        return [self._shown(item, items, depth + 1) for item in value]


class _Schema:
    """The part of a tool's schema that describes one value: nothing where that is not plain."""

    def __init__(self, schema: Json, root: Json = None) -> None:
        self._root = schema if root is None else root
        self._here = schema if isinstance(schema, Mapping) else {}
        reference = self._here.get("$ref")
        if isinstance(reference, str) and isinstance(self._root, Mapping):
            where, _, name = reference.rpartition("/")
            defined = self._root.get(where.removeprefix("#/"))
            found = defined.get(name) if isinstance(defined, Mapping) else None
            self._here = found if isinstance(found, Mapping) else {}

    def names_secret(self, key: str) -> bool:
        properties = self._here.get("properties")
        return isinstance(properties, Mapping) and key in properties and names_secret(key)

    def below(self, key: str | None) -> _Schema:
        if key is None:
            return _Schema(self._here.get("items"), self._root)
        properties = self._here.get("properties")
        known = properties.get(key) if isinstance(properties, Mapping) else None
        return _Schema(known, self._root)


class ClearedStream:
    """Takes secrets out of a text that comes in pieces, and also those that two pieces share.

    Holds back what could be the beginning of one, and nothing else: the reader sees a
    line when it is written.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = self._held = b""

    def feed(self, data: bytes, *, ends: bool = False) -> bytes:
        """Return what is certain so far."""
        if not (self._held or self._redactor._known):
            # Large results pass without a copy.
            self._before = (self._before + data[-_CONTEXT:])[-_CONTEXT:]
            return data
        text, skip = self._before + self._held + data, len(self._before)
        needles, note = self._redactor._texts, self._redactor._note
        end = len(text) if ends else max(skip, needles.first_beginning(text))
        cleared, end = needles.replaced_so_far(text, end, skip, note)
        self._before, self._held = text[max(0, end - _CONTEXT) : end], text[end:]
        if len(self._held) > 8 * MAX_SECRET_CHARS:
            # Nothing but secrets that overlap, or the beginning of an enormous one.
            return cleared + self.finish()
        return cleared

    def finish(self) -> bytes:
        return self.feed(b"", ends=True)


def _texts(value: Json) -> list[str] | None:
    """Return all texts in arguments; None if some may be masked by their name alone."""
    found: list[str] = []
    level = [value]
    for _ in range(100):
        below: list[Json] = []
        for one in level:
            if isinstance(one, str):
                found.append(one)
            elif isinstance(one, dict):
                for key, item in one.items():
                    if not isinstance(key, str) or names_secret(key):
                        return None
                    found.append(key)
                    below.append(item)
            elif isinstance(one, (list, tuple)):
                below.extend(one)
        if not below:
            return found
        level = below
    return None


def _mark(name: str) -> str:
    """Return what stands in a secret's place. It needs no escape in JSON."""
    return f"{MASK_BEGINS}{_UNSAFE.sub('?', name)[:100]}]"


class _Needles:
    """Looks for all forms of all secrets at once.

    In JSON they are `escaped`: what only seems to be one may begin in the middle of an escape.
    """

    def __init__(self, forms: Iterable[Form], *, escaped: bool) -> None:
        self._escaped = escaped
        self._automaton = ahocorasick.Automaton()
        every: set[bytes] = set()
        for form, mark, whole in itertools.islice(forms, 100_000):  # A thousand secrets have fewer.
            if form not in every:
                self._automaton.add_word(_key(form), (len(form), mark, whole))
                every.add(form)
        self._automaton.make_automaton()
        self._longest = max(map(len, every), default=0)
        self._short = [form for form in every if len(form) < _LONG]
        long = [form for form in every if len(form) >= _LONG]
        room = min(map(len, long), default=0) - _WORD + 1
        self._stride = min(room // _WORD * _WORD, 64) or _WORD
        words = (form[at : at + _WORD] for form in long for at in range(self._stride))
        self._words = frozenset(int.from_bytes(word, sys.byteorder) for word in words)

    def replaced(self, data: bytes, *, note: Note | None = None) -> bytes:
        return self.replaced_so_far(data, len(data), 0, note)[0]

    def replaced_so_far(
        self, data: bytes, end: int, skip: int, note: Note | None
    ) -> tuple[bytes, int]:
        """Return `data` from `skip` on with marks in place of secrets, and how far it is certain.

        A secret that continues could begin at `end`.
        """
        spans = self.spans(data, skip)
        while spans and spans[-1].end > end:
            end = min(end, spans.pop().start)
        if note is not None:
            self._report(data[:end], spans, note)
        if not spans:
            return (data[skip:end] if skip or end < len(data) else data), end
        parts, kept = [], skip
        for start, stop, mark in spans:
            parts += [data[kept:start], mark]
            kept = stop
        return b"".join([*parts, data[kept:end]]), end

    def _report(self, data: bytes, spans: Sequence[_Span], note: Note) -> None:
        for start, end, mark in spans:
            text = data[start:end].decode("utf-8", "surrogatepass")
            note(mark.decode(), json.loads(f'"{text}"') if self._escaped else text)
        # A text that only reads like a mark replaces itself.
        for match in MARK.findall(data) if MASK_BEGINS.encode() in data else ():
            note(match.decode(), match.decode())

    def _possible(self, data: bytes) -> bool:
        """Return whether there may be any: twenty times as fast as the automaton for a large text.

        Wherever a long form stands, one of the words that are looked up lies within it.
        """
        # Many short forms, or few bytes: the automaton is as fast.
        if len(data) < 4096 or len(self._short) > 32:
            return True
        whole = memoryview(data)[: len(data) // _WORD * _WORD]
        looked_up = whole.cast("Q")[:: self._stride // _WORD]
        return not self._words.isdisjoint(looked_up) or any(form in data for form in self._short)

    def spans(self, data: bytes, skip: int = 0) -> list[_Span]:
        """Return where secrets are; those that overlap as one, so that no rest of them is left."""
        found: list[_Span] = []
        if not self._longest or not self._possible(data):
            return found
        portion = max(_PORTION, self._longest)
        # A search lets no other thread in before its end.
        for done in range(0, len(data), portion):
            first = max(0, done - self._longest + 1)
            matches = self._automaton.iter(_key(data[first : done + portion]))
            for last, (size, mark, whole) in matches:
                end = first + last + 1
                span = _Span(end - size, end, mark)
                if end <= done or (self._escaped and not _begins_a_character(data, span.start)):
                    continue
                if span.start < skip or (whole and not _is_whole(data, span.start, end)):
                    continue
                while found and found[-1].end > span.start:
                    earlier = found.pop()
                    if earlier.start < span.start:
                        span = earlier._replace(end=end)
                found.append(span)
        return found

    def first_beginning(self, data: bytes) -> int:
        """Return the first place from which on `data` is the beginning of a longer form.

        A whole word at the end is one too: what follows may continue the word.
        """
        total, automaton = len(data), self._automaton
        text = _key(data[-self._longest :])
        for place in range(len(text)):
            head = text[place : place + 8]
            if automaton.longest_prefix(head) == len(head):
                rest = text[place:]
                longer = itertools.islice(automaton.items(rest), 2)
                if any(size > len(rest) or whole for _, (size, _, whole) in longer):
                    return total - len(rest)
        return total


def _key(data: bytes) -> str | bytes:
    """Return bytes as the automaton takes them: most are built for texts."""
    return data.decode("latin-1") if ahocorasick.unicode else data


_ESCAPE = re.compile(
    rb"(?:\\[a-z]|\\u[0-9a-fA-F]{4}|(?:\\x|%)[0-9a-fA-F]{2}|(?:\x1b|\\u001b)\[[0-9;]{0,12}m)\Z"
)
"""What ends in a letter or a digit, and is neither: an escape in JSON, addresses or terminals."""

_CONTEXT = 20  # Bytes before a form that decide whether it is a whole word.


def _is_whole(data: bytes, start: int, end: int) -> bool:
    if data[end - 1 : end].isalnum() and data[end : end + 1].isalnum():
        return False
    glued = data[start : start + 1].isalnum() and data[max(0, start - 1) : start].isalnum()
    return not glued or bool(_ESCAPE.search(data[max(0, start - _CONTEXT) : start]))


def _begins_a_character(data: bytes, start: int) -> bool:
    """Return whether a character of a JSON text begins at `start`, not half an escape."""
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


LEAST_ENCODED = 7
"""Characters of an encoded form that is still looked for: shorter ones turn up by chance."""

Form = tuple[bytes, bytes, bool]
"""What is looked for, the mark that replaces it, and whether only whole words match."""


def text_forms(known: Mapping[str, str], words: Collection[str] = ()) -> Iterator[Form]:
    """Yield the forms that secrets (each with its mark) have in a text that may hold JSON."""
    yield from _forms(known, words)
    for secret, mark in known.items():
        with suppress(UnicodeEncodeError):
            # A variable of the environment holds any bytes, and Python writes them as surrogates.
            raw = secret.encode("utf-8", "surrogateescape")
            if raw != secret.encode("utf-8", "surrogatepass"):
                shown = mark.encode("ascii", "replace")
                yield (raw, shown, False)
                yield (quote(raw, safe="").encode("ascii"), shown, False)
                yield from _encode_forms(raw, shown)


def _forms(known: Mapping[str, str], words: Collection[str]) -> Iterator[Form]:
    for secret, mark in known.items():
        whole, shown = secret in words, mark.encode("ascii", "replace")
        data = secret.encode("utf-8", "surrogatepass")
        yield (data, shown, whole)
        # Each has a mark of its own, so that a mark stands for one text.
        for number, form in enumerate(sorted(_write_forms(secret)), 2):
            other = f"{mark[:-1]}, form {number}]".encode("ascii", "replace")
            yield (form.encode("utf-8", "surrogatepass"), other, whole)
        yield from _encode_forms(data, shown)


def json_forms(known: Mapping[str, str], words: Collection[str]) -> Iterator[Form]:
    for data, mark, whole in _forms(known, words):
        text = data.decode("utf-8", "surrogatepass")
        for form in _escape_forms(text):
            yield (form.encode("utf-8", "surrogatepass"), mark, whole)


def mark_forms(marks: Iterable[str], known: Mapping[str, str]) -> Iterator[Form]:
    """Yield marks, and what is left of one that is cut, encoded or decoded."""
    yield from ((mark.encode(), mark.encode(), False) for mark in marks)
    for secret, mark in known.items():
        shown = mark.encode("ascii", "replace")
        filled = _fill_mark(secret.encode("utf-8", "surrogatepass"), shown)
        # Wherever a mark is cut, one half has its first 15 characters, or these last ones.
        tail = shown[-min(12, max(1, len(shown) - 14)) :]
        left = {part for part in (shown[:15], shown[1:-1], filled, filled[1:-1]) if len(part) > 14}
        left |= {tail} if len(tail) > LEAST_ENCODED else set()
        left |= {form.encode() for form in _write_forms(mark)}
        left |= {form for form, _, _ in _encode_forms(shown, shown)}
        yield from ((part, b"", False) for part in left)


def _write_forms(secret: str) -> set[str]:
    """Return a secret as JSON in a text has it, JSON in a text of that, and addresses."""
    once = _escape_forms(secret)
    twice = {again for form in once for again in _escape_forms(form)}
    percent = {quote(secret, safe="", errors="replace"), quote(secret, errors="replace")}
    percent.add(quote_plus(secret, errors="replace"))
    lower = {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in percent}
    # What a browser leaves alone in a query.
    percent.add(quote(secret, safe="/:@!$'()*,;~", errors="replace"))
    return {*once, *twice, *percent, *lower} - {secret}


def _escape_forms(text: str) -> set[str]:
    """Return the ways in which encoders write a text into JSON."""
    forms = set()
    for ascii_only in (True, False):
        form = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        # Some write every slash so.
        forms |= {form, form.replace("/", "\\/")}
    return forms


def _fill_mark(data: bytes, mark: bytes) -> bytes:
    return mark[: len(data)].ljust(min(len(data), 4096), b"*").ljust(len(data), b"*")


def _encode_forms(data: bytes, mark: bytes) -> Iterator[Form]:
    """Yield the Base64 forms, at each place that it may have in what is encoded, and hexadecimal.

    A mark in Base64 is as long as what it replaces, so that what follows decodes as before.
    """
    filled = _fill_mark(data, mark)
    for before in range(3):
        lost = (0, 2, 3)[before]
        full = (before + len(data)) * 8 // 6
        if full - lost < LEAST_ENCODED:
            continue
        ways = (base64.b64encode, base64.urlsafe_b64encode)
        for encode in ways:
            text = encode(bytes(before) + data)[lost:full]
            yield (text, encode(bytes(before) + filled)[lost:full], False)
    for digits in (data.hex(), data.hex().upper()):
        yield (digits.encode(), filled.hex().encode(), False)
