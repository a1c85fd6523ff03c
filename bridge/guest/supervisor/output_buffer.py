"""Limits a program's output on one stream.

The beginning is sent as it is written. The end is held back until the program ends. Bytes between
the two are dropped and counted. Takes bytes, returns `Output` frames; reads no descriptor.
"""

from __future__ import annotations

from bridge.guest.protocol.wire import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List

PIECE_BYTES = 64 * 1024
"""Output is cut into frames of about this size, so that none is near the frame limit."""

TAIL_BYTES = 128 * 1024
"""Most bytes held back of a stream's end; this process keeps them in memory."""


class Capture:
    """Keeps the beginning and the end of one stream within `limit` bytes."""

    def __init__(self, stream: str, limit: int) -> None:
        self._stream = stream
        self._tail_limit = min(limit - limit // 2, TAIL_BYTES)
        self._room = limit - self._tail_limit
        self._tail = bytearray()
        self._split = b""
        self._dropped = 0

    def feed(self, data: bytes) -> bytes:
        """Add bytes of the stream; return those to send now."""
        if not self._room:
            self._keep(data)
            return b""
        # A character that is not complete joins what follows, be it shown or held back.
        data = self._split + data
        end = _whole(data[: self._room])
        if len(data) < self._room:
            self._room -= end
            self._split = data[end:]
        else:
            self._tail_limit += self._room - end
            self._room, self._split = 0, b""
            self._keep(data[end:])
        return data[:end]

    def finish(self) -> List[Output]:
        """Return the frames for the part that was held back."""
        self._tail += self._split
        if not self._dropped:
            return list(self._frames(0))
        self._trim(self._tail_limit)
        start = 0
        while start < min(3, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
            start += 1
        del self._tail[:start]
        self._dropped += start
        return list(self._frames(self._dropped))

    def _keep(self, data: bytes) -> None:
        if len(data) > self._tail_limit:
            # More than the whole tail: replace the tail without moving the rest.
            self._dropped += len(self._tail) + len(data) - self._tail_limit
            self._tail[:] = data[len(data) - self._tail_limit :]
            return
        self._tail += data
        # The first excess is trimmed at once, so that `_dropped` says whether there was any; later
        # ones only at twice the limit, which moves each byte once on average.
        slack = 2 if self._dropped else 1
        if len(self._tail) > slack * self._tail_limit:
            self._trim(self._tail_limit)

    def _trim(self, size: int) -> None:
        excess = len(self._tail) - size
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def _frames(self, skipped: int) -> Iterator[Output]:
        for start in range(0, max(len(self._tail), skipped > 0), PIECE_BYTES):
            data = bytes(self._tail[start : start + PIECE_BYTES])
            yield Output(self._stream, data, skipped if not start else 0)


def _whole(data: bytes) -> int:
    """Return the length without an incomplete character at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - (back if needed > back else 0)
    return len(data)
