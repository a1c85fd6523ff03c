"""Limits a program's output on one stream.

The beginning is sent as it is written. The end is held back until the program ends. Bytes between
the two are dropped and counted. Takes bytes, returns `Output` frames; reads no descriptor.
"""

from __future__ import annotations

import codecs

from bridge.guest.protocol.wire import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List

TEXT_BYTES = 64 * 1024
"""Output is cut into frames of about this size, so that none is near the frame limit."""

TAIL_BYTES = 128 * 1024
"""Most bytes held back of a stream's end; this process keeps them in memory."""


class Capture:
    """Keeps the beginning and the end of one stream within `limit` bytes.

    In the text a lone surrogate stands for each byte that is not UTF-8, so that no byte is lost.
    """

    def __init__(self, stream: str, limit: int) -> None:
        self._stream = stream
        self._tail_limit = min(limit - limit // 2, TAIL_BYTES)
        self._room = limit - self._tail_limit
        self._tail = bytearray()
        self._dropped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    @property
    def full(self) -> bool:
        """Whether the beginning is complete: the rest is held back, and most of it dropped."""
        return not self._room

    def feed(self, data: bytes) -> str:
        """Add bytes of the stream; return the text to send now."""
        text = ""
        if self._room:
            head = data[: self._room]
            data = data[len(head) :]
            self._room -= len(head)
            text = self._decoder.decode(head)
            if self._room:
                return text
            # The cut may fall inside a character: its bytes join the rest, which keeps the total.
            split = self._decoder.getstate()[0]
            self._tail_limit += len(split)
            data = split + data
            self._decoder.reset()
        self._keep(data)
        return text

    def finish(self) -> List[Output]:
        """Return the frames for the part that was held back."""
        if not self._dropped:
            return list(self._frames(self._ending(), 0))
        self._trim(self._tail_limit)
        start = 0
        while start < min(3, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
            start += 1
        del self._tail[:start]
        self._dropped += start
        return list(self._frames(self._tail.decode("utf-8", "surrogateescape"), self._dropped))

    def _ending(self) -> str:
        if self._tail:
            return self._tail.decode("utf-8", "surrogateescape")
        # The head was the whole stream: it may end in an incomplete character.
        return self._decoder.decode(b"", True)

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

    def _frames(self, text: str, skipped: int) -> Iterator[Output]:
        for start in range(0, len(text), TEXT_BYTES):
            yield Output(
                self._stream, text[start : start + TEXT_BYTES], skipped if not start else 0
            )
        if skipped and not text:
            yield Output(self._stream, "", skipped)
