"""Removes secrets from what reaches a sandbox, a model or a log, and keeps the shape of JSON.

`redaction_shapes` finds values that only look like secrets.
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

MAX_SECRETS = 1000  # Another user's environment file can have any number.
MAX_SECRET_CHARS = 64 * 1024  # Keys and certificates have some thousand.
_PORTION = 64 * 1024  # Bytes of one search.

_WORD = 8  # Bytes of each word that the quick search for long forms looks up.

_LONG = 2 * _WORD - 1  # A form of this many bytes has a word at a multiple of eight.
MARK = re.compile(rb"\[redacted: [^\[\]]{1,200}\]")  # A whole mark.

_OTHER = re.compile(rf"{re.escape(MASK_BEGINS)}(?:[^\[\]]{{1,200}}\])?")

_DEEPER = "[nested too deeply to be shown]"

_NO_MASK = f"[the text: {MASK_BEGINS[1:]}"
"""Replaces the start of a text that only looks like a mask."""

_UNSAFE = re.compile(r"[^ !#-Z^-~]")  # Characters that JSON escapes.

as_json = json_text.encoder(allow_nan=True)


Note = Callable[[str, str], None]


class _Span(NamedTuple):
    """The place of a secret, or of several that overlap, with the mark of the first or longest."""

    start: int
    end: int
    mark: bytes


class Redactor:
    """Removes known values from texts, JSON and frames.

    A bridge has one. `known` maps its secrets to names in marks ("GITHUB_TOKEN of github"). The
    secrets in `words` match only as whole words. A change of the secrets changes `revision`.
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

    def with_note(self, note: Note) -> Redactor:
        return self._with(_note=note)

    def _with(self, **changes: object) -> Redactor:
        view = object.__new__(Redactor)
        view.__dict__.update(self.__dict__, **changes)
        return view

    def find_marks(self, line: bytes) -> list[_Span]:
        """Return the places of marks in a line of JSON. A changed mark has an empty one."""
        return self._marks.spans(line)

    def text(self, text: str) -> str:
        if not self._known or not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        cleared = self.redact_bytes(data)
        return text if cleared is data else cleared.decode("utf-8", "surrogatepass")

    def redact_bytes(self, data: bytes) -> bytes:
        return self._texts.replace_secrets(data, note=self._note) if self._known and data else data

    def stream(self) -> ClearedStream:
        return ClearedStream(self)

    def frame(self, line: bytes) -> bytes:
        """Return a line of JSON without known secrets. Raise `ValueError` for other text."""
        cleared = self._frames.replace_secrets(line, note=self._note) if self._known else line
        if cleared is line:
            return line
        try:
            try:
                json.loads(cleared)
            except ValueError:
                # It is also outside of texts, as a number or between values.
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
        """Return a value without known secrets, also in keys; the same object if it has none."""
        if not self._known or value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.text(value)
        try:
            line = as_json(value).encode("utf-8", "surrogatepass")
        except RecursionError:
            raise ValueError("the value is nested too deeply") from None
        cleared = self.frame(line)
        if cleared is line:
            return value
        return json.loads(cleared.decode("utf-8", "surrogatepass"))

    def arguments(self, value: Json, schema: Json = None, *, marks: bool = False) -> Json:
        """Return arguments for questions, plans and the audit log.

        Known secrets are removed. Texts in the format of a secret, and values of parameters that
        name one, have a mask with their ends, length and digest. Everything else is shown.
        Names outside of the schema mask nothing: a program could use one to hide a value. With
        `marks` known marks stay, because the gate replaces or refuses them.
        """
        if marks:
            return self._with(_plain=self.marks).arguments(value, schema)
        if (texts := _texts(value)) is not None:
            # One search of all texts takes a fifth of the time, for each call.
            # No format has a line feed, and each may stand next to one. Matches over two texts are
            # checked again.
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
                # A mask would show the ends of a known secret.
                if secret and could_be_password(item) and self.text(item) is item:
                    found[shown] = mask(item)
                else:
                    found[shown] = self._shown(item, schema.below(key), depth + 1)
            return found
        items = schema.below(None)
        return [self._shown(item, items, depth + 1) for item in value]


class _Schema:
    """The schema of one value; empty if it is not plain."""

    def __init__(self, schema: Json, root: Json = None) -> None:
        self._root = schema if root is None else root
        self._here = schema if isinstance(schema, Mapping) else {}
        reference = self._here.get("$ref")
        if isinstance(reference, str) and isinstance(self._root, Mapping):
            where, _, name = reference.rpartition("/")
            defined = self._root.get(where.removeprefix("#/"))
            found = defined.get(name) if isinstance(defined, Mapping) else None
            self._here = found if isinstance(found, Mapping) else {}
        properties = self._here.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}

    def names_secret(self, key: str) -> bool:
        return key in self._properties and names_secret(key)

    def below(self, key: str | None) -> _Schema:
        known = self._here.get("items") if key is None else self._properties.get(key)
        return _Schema(known, self._root)


class ClearedStream:
    """Removes secrets from a text that arrives in pieces, also those that span pieces.

    It holds back only the possible start of a secret, so that a reader sees each line at once.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = self._held = b""

    def feed(self, data: bytes, *, ends: bool = False) -> bytes:
        """Return the text that is certain now."""
        if not (self._held or self._redactor._known):
            self._before = (self._before + data[-_CONTEXT:])[-_CONTEXT:]
            return data
        text, skip = self._before + self._held + data, len(self._before)
        needles, note = self._redactor._texts, self._redactor._note
        end = len(text) if ends else max(skip, needles.first_beginning(text))
        cleared, end = needles.replaced_so_far(text, end, skip, note)
        self._before, self._held = text[max(0, end - _CONTEXT) : end], text[end:]
        if len(self._held) > 8 * MAX_SECRET_CHARS:
            # Overlapping secrets, or the start of a huge one.
            return cleared + self.finish()
        return cleared

    def finish(self) -> bytes:
        return self.feed(b"", ends=True)


def _texts(value: Json) -> list[str] | None:
    """Return all texts in arguments; None if a key may name a secret."""
    texts: list[str] = []
    stack = [(value, 0)]
    while stack:
        part, depth = stack.pop()
        if isinstance(part, str):
            texts.append(part)
        if not isinstance(part, (dict, list, tuple)):
            continue
        if depth >= 100:
            return None
        if isinstance(part, dict):
            if not all(isinstance(key, str) and not names_secret(key) for key in part):
                return None
            texts += part
            part = part.values()
        stack += [(item, depth + 1) for item in part]
    return texts


def _mark(name: str) -> str:
    """Return the mark of a secret's name. JSON does not escape it."""
    return f"{MASK_BEGINS}{_UNSAFE.sub('?', name)[:100]}]"


class _Needles:
    """Searches for all forms of all secrets at once.

    In `escaped` JSON, a match may begin in the middle of an escape, and then does not count.
    """

    def __init__(self, forms: Iterable[Form], *, escaped: bool) -> None:
        self._escaped = escaped
        self._automaton = ahocorasick.Automaton()
        every: set[bytes] = set()
        for form, mark, whole in itertools.islice(forms, 100_000):
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

    def replace_secrets(self, data: bytes, *, note: Note | None = None) -> bytes:
        return self.replaced_so_far(data, len(data), 0, note)[0]

    def replaced_so_far(
        self, data: bytes, end: int, skip: int, note: Note | None
    ) -> tuple[bytes, int]:
        """Return `data` from `skip` on with marks for secrets, and the offset up to which it is
        certain.

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
        # A text that only looks like a mark replaces itself.
        for match in MARK.findall(data) if MASK_BEGINS.encode() in data else ():
            note(match.decode(), match.decode())

    def _possible(self, data: bytes) -> bool:
        """Return whether there may be secrets, twenty times as fast as the automaton for large
        texts.

        Each long form contains one of the words that this looks up.
        """
        # Here the automaton is as fast.
        if len(data) < 4096 or len(self._short) > 32:
            return True
        whole = memoryview(data)[: len(data) // _WORD * _WORD]
        looked_up = whole.cast("Q")[:: self._stride // _WORD]
        return not self._words.isdisjoint(looked_up) or any(form in data for form in self._short)

    def spans(self, data: bytes, skip: int = 0) -> list[_Span]:
        """Return the places of secrets. Overlapping secrets are one span."""
        found: list[_Span] = []
        if not self._longest or not self._possible(data):
            return found
        portion = max(_PORTION, self._longest)
        # A search blocks other threads.
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
        """Return the first offset from which `data` is the start of a longer form.

        A whole word at the end is one, since the next piece may continue it.
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
    """Return bytes in the type that the automaton was built for."""
    return data.decode("latin-1") if ahocorasick.unicode else data


_ESCAPE = re.compile(
    rb"(?:\\[a-z]|\\u[0-9a-fA-F]{4}|(?:\\x|%)[0-9a-fA-F]{2}|(?:\x1b|\\u001b)\[[0-9;]{0,12}m)\Z"
)
"""An escape in JSON, addresses or terminals that ends in a letter or digit."""

_CONTEXT = 20  # Bytes before a form that decide whether it is a whole word.


def _is_whole(data: bytes, start: int, end: int) -> bool:
    if data[end - 1 : end].isalnum() and data[end : end + 1].isalnum():
        return False
    glued = data[start : start + 1].isalnum() and data[max(0, start - 1) : start].isalnum()
    return not glued or bool(_ESCAPE.search(data[max(0, start - _CONTEXT) : start]))


def _begins_a_character(data: bytes, start: int) -> bool:
    """Return whether a character of JSON text begins at `start`, and not the rest of an escape."""
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
        # Piece by piece: a server may send millions of backslashes.
        piece = data[max(0, before - 4096) : before]
        kept = piece.rstrip(b"\\")
        before -= len(piece) - len(kept)
        if kept:
            break
    return (end - before) % 2 == 1


LEAST_ENCODED = 7  # The minimum length of an encoded form. Shorter ones occur by chance.

Form = tuple[bytes, bytes, bool]
"""The searched bytes, the mark, and whether only whole words match."""


def text_forms(known: Mapping[str, str], words: Collection[str] = ()) -> Iterator[Form]:
    """Yield the forms of secrets, with their marks, in a text that may hold JSON."""
    yield from _forms(known, words)
    for secret, mark in known.items():
        with suppress(UnicodeEncodeError):
            # A variable may have bytes that are no text, which Python writes as surrogates.
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
        # A separate mark for each, so that a mark stands for one text.
        for number, form in enumerate(sorted(_write_forms(secret)), 2):
            other = f"{mark[:-1]}, form {number}]".encode("ascii", "replace")
            yield (form.encode("utf-8", "surrogatepass"), other, whole)
        yield from _encode_forms(data, shown)


def json_forms(known: Mapping[str, str], words: Collection[str]) -> Iterator[Form]:
    for data, mark, whole in _forms(known, words):
        for form in _escape_forms(data.decode("utf-8", "surrogatepass")):
            yield (form.encode("utf-8", "surrogatepass"), mark, whole)


def mark_forms(marks: Iterable[str], known: Mapping[str, str]) -> Iterator[Form]:
    """Yield marks, and parts of marks that were cut, encoded or decoded."""
    yield from ((mark.encode(), mark.encode(), False) for mark in marks)
    for secret, mark in known.items():
        shown = mark.encode("ascii", "replace")
        filled = _fill_mark(secret.encode("utf-8", "surrogatepass"), shown)
        # One half of a cut mark has its first 15 characters, or these last ones.
        tail = shown[-min(12, max(1, len(shown) - 14)) :]
        left = {part for part in (shown[:15], shown[1:-1], filled, filled[1:-1]) if len(part) > 14}
        left |= {tail} if len(tail) > LEAST_ENCODED else set()
        left |= {form.encode() for form in _write_forms(mark)}
        left |= {form for form, _, _ in _encode_forms(shown, shown)}
        yield from ((part, b"", False) for part in left)


def _write_forms(secret: str) -> set[str]:
    """Return a secret in JSON, in JSON within JSON, and in addresses."""
    once = _escape_forms(secret)
    twice = {again for form in once for again in _escape_forms(form)}
    percent = {quote(secret, safe="", errors="replace"), quote(secret, errors="replace")}
    percent.add(quote_plus(secret, errors="replace"))
    lower = {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in percent}
    # Browsers do not escape these in a query.
    percent.add(quote(secret, safe="/:@!$'()*,;~", errors="replace"))
    return {*once, *twice, *percent, *lower} - {secret}


def _escape_forms(text: str) -> set[str]:
    """Return the ways in which encoders write a text into JSON."""
    forms = set()
    for ascii_only in (True, False):
        form = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        # Some encoders escape every slash.
        forms |= {form, form.replace("/", "\\/")}
    return forms


def _fill_mark(data: bytes, mark: bytes) -> bytes:
    return mark[: len(data)].ljust(len(data), b"*")


def _encode_forms(data: bytes, mark: bytes) -> Iterator[Form]:
    """Yield hexadecimal forms, and the Base64 forms at each of the three offsets.

    The Base64 of a mark is as long as that of the secret, so that the following text stays
    decodable.
    """
    filled = _fill_mark(data, mark)
    for before in range(3):
        lost = (0, 2, 3)[before]
        full = (before + len(data)) * 8 // 6
        if full - lost < LEAST_ENCODED:
            continue
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(bytes(before) + data)[lost:full]
            yield (text, encode(bytes(before) + filled)[lost:full], False)
    for digits in (data.hex(), data.hex().upper()):
        yield (digits.encode(), filled.hex().encode(), False)
