"""What is kept of a stream: its secrets taken out, then its head and its tail. Pure.

Owns the order: redaction comes first and looks across the pieces that a stream comes in, so that
neither a piece's end nor the cut in the middle can leave half of a secret.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from urllib.parse import quote

REDACTED = b"[redacted]"

SHORTEST_SECRET = 4
"""Characters. A shorter value would be found in everything, so it cannot be kept out of output."""

MAX_SECRET_BYTES = 16 * 1024
"""Of one value; as much of a stream is held back at most."""


class Redactor:
    """Replaces secrets in a stream. Where some overlap, one replacement stands for all of them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = {form for secret in secrets for form in _spellings(secret)}
        self._held = b""
        # So much at the beginning of what is held belongs to a secret already replaced.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """Return what is certain of the stream so far."""
        if not self._secrets:
            return data
        text = self._held + data
        # What could be the beginning of a secret waits for more.
        return self._advance(text, len(text) - self._possible_start(text))

    def finish(self) -> bytes:
        """Return what was held back, at the stream's end."""
        return self._advance(self._held, len(self._held))

    def text(self, text: str) -> str:
        """Return a whole text without secrets."""
        whole = Redactor(())
        whole._secrets = self._secrets
        data = text.encode("utf-8", "surrogatepass")
        return whole._advance(data, len(data)).decode("utf-8", "replace")

    def _advance(self, text: bytes, certain: int) -> bytes:
        """Return `text` up to `certain`, or to the end of a secret that begins before; hold on."""
        made: list[bytes] = []
        done = self._covered
        for start, end in self._spans(text):
            if start >= certain:
                break
            if start >= done:
                made += (text[done:start], REDACTED)
            done = max(done, end)
        made.append(text[done:certain])
        self._held = text[certain:]
        self._covered = max(0, done - certain)
        return b"".join(made)

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return where secrets stand, in the order of their beginnings."""
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            position = data.find(secret)
            while position >= 0:
                found.append((position, position + len(secret)))
                position = data.find(secret, position + 1)
        return sorted(found)

    def _possible_start(self, data: bytes) -> int:
        """Return the length of the longest end of `data` that begins a secret."""
        return max((_overlap(data, secret) for secret in self._secrets), default=0)


def _overlap(data: bytes, secret: bytes) -> int:
    """Return how much of the end of `data` is the beginning of `secret`."""
    position = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
    while position >= 0:
        if secret.startswith(data[position:]):
            return len(data) - position
        position = data.find(secret[:1], position + 1)
    return 0


def _spellings(secret: str) -> Iterable[bytes]:
    """Return a value as it is, in JSON and in a URL, and each line of it."""
    whole = secret.strip("\n")
    lines = [line for line in whole.splitlines() if len(line) >= 2 * SHORTEST_SECRET]
    for text in (whole, *lines):
        data = text.encode("utf-8", "surrogateescape")
        for spelling in (text, json.dumps(text)[1:-1], quote(data, safe="")):
            yield spelling.encode("utf-8", "surrogateescape")


class Capture:
    """Keeps the head and the tail of a stream within `limit` bytes."""

    def __init__(self, limit: int, redactor: Redactor) -> None:
        self._half = limit // 2
        self._redactor = redactor
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._keep(self._redactor.feed(data))

    def finish(self) -> None:
        """Take in what waited for more. Idempotent."""
        self._keep(self._redactor.finish())

    def text(self) -> str:
        """Return what is kept, with a line about what is not."""
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self.dropped:
            return (head + tail).decode("utf-8", "backslashreplace")
        gap = f"\n[... {self.dropped:,} bytes dropped ...]\n"
        return _decode(head) + gap + _decode(tail)

    def _keep(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size > self._half:
            first = self._tail.popleft()
            excess = min(len(first), self._tail_size - self._half)
            self.dropped += excess
            self._tail_size -= excess
            if excess < len(first):
                self._tail.appendleft(first[excess:])


def _decode(data: bytes) -> str:
    # A cut may have gone through a character.
    return data.decode("utf-8", "ignore")
