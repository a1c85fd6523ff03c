"""The forms in which texts hold a secret, and the mark that replaces each. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import quote, quote_plus

LEAST_ENCODED = 7
"""Characters of an encoded form that is still looked for: shorter ones turn up by chance."""

Form = tuple[bytes, bytes, bool]
"""What is looked for, the mark that replaces it, and whether only whole words match."""


def text_forms(known: Mapping[str, str], words: Collection[str] = ()) -> Iterator[Form]:
    """Yield the forms that secrets have in a text that is no JSON itself, but may hold some.

    Args:
        known: Secret to its mark.
        words: Those that are found only as whole words.
    """
    yield from _forms(known, words)
    for secret, mark in known.items():
        with suppress(UnicodeEncodeError):
            # A variable of the environment holds any bytes, and Python writes them as surrogates.
            raw = secret.encode("utf-8", "surrogateescape")
            if raw != secret.encode("utf-8", "surrogatepass"):
                shown = mark.encode("ascii", "replace")
                yield (raw, shown, False)
                yield (quote(raw, safe="").encode("ascii"), shown, False)
                yield from _encoded(raw, shown)


def _forms(known: Mapping[str, str], words: Collection[str]) -> Iterator[Form]:
    for secret, mark in known.items():
        whole, shown = secret in words, mark.encode("ascii", "replace")
        data = secret.encode("utf-8", "surrogatepass")
        yield (data, shown, whole)
        # Each has a mark of its own, so that a mark stands for one text.
        for number, form in enumerate(sorted(_written(secret)), 2):
            other = f"{mark[:-1]}, form {number}]".encode("ascii", "replace")
            yield (form.encode("utf-8", "surrogatepass"), other, whole)
        yield from _encoded(data, shown)


def json_forms(known: Mapping[str, str], words: Collection[str]) -> Iterator[Form]:
    for data, mark, whole in _forms(known, words):
        text = data.decode("utf-8", "surrogatepass")
        for form in _escaped(text):
            yield (form.encode("utf-8", "surrogatepass"), mark, whole)


def mark_forms(marks: Iterable[str], known: Mapping[str, str]) -> Iterator[Form]:
    """Yield marks, and what is left of one that is cut, encoded or decoded."""
    yield from ((mark.encode(), mark.encode(), False) for mark in marks)
    for secret, mark in known.items():
        shown = mark.encode("ascii", "replace")
        filled = _filled(secret.encode("utf-8", "surrogatepass"), shown)
        # Wherever a mark is cut, one half has its first 15 characters, or these last ones.
        tail = shown[-min(12, max(1, len(shown) - 14)) :]
        left = {part for part in (shown[:15], shown[1:-1], filled, filled[1:-1]) if len(part) > 14}
        left |= {tail} if len(tail) > LEAST_ENCODED else set()
        left |= {form.encode() for form in _written(mark)}
        left |= {form for form, _, _ in _encoded(shown, shown)}
        yield from ((part, b"", False) for part in left)


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


def _filled(data: bytes, mark: bytes) -> bytes:
    return mark[: len(data)].ljust(min(len(data), 4096), b"*").ljust(len(data), b"*")


def _encoded(data: bytes, mark: bytes) -> Iterator[Form]:
    """Yield the Base64 forms, at each place that it may have in what is encoded, and hexadecimal.

    A mark in Base64 is as long as what it replaces, so that what follows decodes as before.
    """
    filled = _filled(data, mark)
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
