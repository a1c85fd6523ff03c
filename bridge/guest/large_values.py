"""The value of a last expression that is too much for a result: printed, an item a line.

Owns how it is written, so that it can be cut, read and searched in parts as output is, and the
words that stand for it in the result. Imported for the first of them: few programs have one.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator

MAX_KEYS = 8
"""Of an object that are named in the result."""

MAX_KEY_CHARS = 40

_BRACKETS: Dict[Any, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def print_json(value: Any) -> str:
    """Print a value of plain JSON; return what stands for it. A text is printed as it is."""
    import json

    def dump(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False)

    if isinstance(value, str):
        return _printed(iter((value,)), value, "")
    # Of an object, what is in its lists.
    return _printed(_lines(value, 2 if type(value) is dict else 1, dump), value, " as JSON")


def print_repr(value: Any) -> str:
    """Print a value that JSON cannot hold as its `repr`; return what stands for it."""
    return _printed(_lines(value, 1, repr), value, " as repr")


def _printed(pieces: Iterator[str], value: Any, form: str) -> str:
    # Past whatever the program put there, which nobody will read.
    stream = sys.__stdout__ or sys.stdout
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        piece = ""
        for piece in pieces:
            stream.write(piece)
        stream.write("" if piece.endswith("\n") else "\n")
        stream.flush()
    except Exception as error:
        # The program may have closed it, or put something of its own there.
        return "%s; it cannot be printed: %s" % (shape(value), type(error).__name__)
    by_items = ", an item a line" if type(value) in _BRACKETS else ""
    return "%s, printed to stdout%s%s" % (shape(value), form, by_items)


def _lines(value: Any, depth: int, dump: Callable[[Any], str]) -> Iterator[str]:
    """Yield the pieces of a value's text, with an item a line down to a depth."""
    kind = type(value)
    brackets = _BRACKETS.get(kind)
    if not depth or not brackets or not value:
        yield dump(value)
        return
    before = brackets[0] + "\n"
    for item in value.items() if kind is dict else value:
        yield before
        before = ",\n"
        if kind is dict:
            key, item = item
            yield "%s: " % dump(key)
        yield from _lines(item, depth - 1, dump) if type(item) in (list, dict) else (dump(item),)
    # One item in round brackets alone is no tuple.
    yield (",\n" if kind is tuple and len(value) == 1 else "\n") + brackets[1]


def shape(value: Any) -> str:
    """Return what a value is and how large, with the first of its keys."""
    kind = type(value)
    if kind is str:
        return "text of %s characters" % f"{len(value):,}"
    if kind not in _BRACKETS:
        return str(kind.__name__)
    told = "%s of %s" % (kind.__name__, f"{len(value):,}")
    if kind is not dict or len(value) > MAX_KEYS:
        return told
    keys = ("%s: %s" % (_key(key), _brief(item)) for key, item in value.items())
    return "%s (%s)" % (told, ", ".join(keys))


def _brief(value: Any) -> str:
    kind = type(value)
    return "%s of %s" % (kind.__name__, f"{len(value):,}") if kind in _BRACKETS else kind.__name__


def _key(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= MAX_KEY_CHARS else text[:MAX_KEY_CHARS] + "..."
