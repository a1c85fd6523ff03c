"""Replies to a guest as bytes, with large texts beside the JSON instead of inside it.

Owns which texts travel that way. To write a text as JSON and to read it again costs several times
what it costs to move it, and copies of it; beside the JSON it is moved as it is. What the program
gets is the same. The other end is `bridge.guest.replies`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Protocol

from bridge.guest.wire import Reply, encode
from bridge.model import Json

LARGE_CHARACTERS = 64 * 1024
"""From here on a text is worth it."""

DEPTH = 3
"""How deep inside objects large texts are looked for: the text itself, a field of structured
content, the data of a blob. What lies deeper is in JSON."""

_PORTION = 1024 * 1024
"""Characters made into bytes at a time, so that a text is in memory once more and not twice."""


class ClearStream(Protocol):
    """Takes it out of a text that comes in pieces."""

    def feed(self, data: bytes) -> bytes:
        """Return what is certain so far."""

    def finish(self) -> bytes:
        """Return what was held back, when nothing follows."""


class Clear(Protocol):
    """Takes out of replies what must not enter a sandbox; see `bridge.gate.redaction`."""

    def text(self, text: str) -> str:
        """Return a text without it."""

    def frame(self, line: bytes) -> bytes:
        """Return a line of JSON without it."""

    def stream(self) -> ClearStream:
        """Return what clears a text that comes in pieces."""


def encode_reply(call_id: int, value: Json, clear: Clear | None = None) -> bytes:
    """Return the reply that gives `value`, without what `clear` takes out.

    Raises:
        ValueError: `value` is not JSON: NaN, an infinity, a cycle, too deep.
        TypeError: It holds something of a type that JSON does not have.
    """
    texts: list[tuple[Sequence[str], str]] = []
    rest = _without_large(value, (), texts)
    if texts:
        try:
            return _beside(call_id, rest, texts, clear)
        except UnicodeEncodeError:
            # A lone surrogate has no bytes, but JSON can escape it.
            texts.clear()
    line = encode(Reply(id=call_id, value=value))
    return line if clear is None else clear.frame(line)


def _beside(
    call_id: int, rest: Json, texts: list[tuple[Sequence[str], str]], clear: Clear | None
) -> bytes:
    data = io.BytesIO()
    for _, told in texts:
        # Before anything is counted: what stands in the place of a secret has another length.
        text = told if clear is None else clear.text(told)
        size = len(text) if text.isascii() else sum(len(p.encode()) for p in _portions(text))
        data.write(b"+%d\n" % size)
        for portion in _portions(text):
            data.write(portion.encode())
    value: Json = {"rest": rest, "texts": [list(path) for path, _ in texts]}
    line = encode(Reply(id=call_id, value=value))
    # Names of fields stand in it twice, and lose the same both times.
    data.write(line if clear is None else clear.frame(line))
    # Nothing is copied here: the buffer itself becomes the bytes.
    return data.getvalue()


def _portions(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PORTION):
        yield text[start : start + _PORTION]


def _without_large(
    value: Json, path: tuple[str, ...], texts: list[tuple[Sequence[str], str]]
) -> Json:
    if isinstance(value, str) and len(value) >= LARGE_CHARACTERS and path:
        texts.append((path, value))
        return None
    if isinstance(value, dict) and len(path) < DEPTH:
        return {
            key: _without_large(item, (*path, key), texts)
            if isinstance(item, (str, dict)) and isinstance(key, str)
            else item
            for key, item in value.items()
        }
    return value
