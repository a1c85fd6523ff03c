"""A run's frame with megabytes in it, made while it goes out.

Owns the bytes that are base64 in a frame. To make JSON of 40 MB in one go takes half a second, in
which nothing else of the bridge runs, in whatever thread it is done.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator

from bridge.guest.wire import HostFrame, Run, encode

LARGE_BYTES = 64 * 1024
"""From here on bytes go out in pieces; less is made in less than a millisecond."""

PIECE_BYTES = 189 * 1024
"""Made and written together; a multiple of three, so that no piece but the last is padded."""


class LargeBase64(str):
    """Stands in a frame for bytes that become base64 as it goes out."""

    __slots__ = ("data",)
    data: bytes

    def __new__(cls, data: bytes) -> LargeBase64:
        """Make one, whose text nobody can have put anywhere else in the frame."""
        made = super().__new__(cls, secrets.token_hex(16))
        made.data = data
        return made


def as_base64(data: bytes) -> str:
    """Return bytes for a frame that `in_pieces` makes."""
    if len(data) < LARGE_BYTES:
        return base64.b64encode(data).decode("ascii")
    return LargeBase64(data)


def in_pieces(frame: HostFrame) -> Iterator[bytes]:
    """Return a frame's line.

    Raises:
        ValueError, TypeError: It is no JSON, of which nothing has gone out then.
    """
    line, large = encode(frame), _large(frame)
    return _spliced(line, large) if large else iter((line,))


def _spliced(line: bytes, texts: list[LargeBase64]) -> Iterator[bytes]:
    start = 0
    for place, large in sorted((line.index(text.encode()), text) for text in texts):
        yield line[start:place]
        for at in range(0, len(large.data), PIECE_BYTES):
            yield base64.b64encode(large.data[at : at + PIECE_BYTES])
        start = place + len(large)
    yield line[start:]


def _large(frame: HostFrame) -> list[LargeBase64]:
    if not isinstance(frame, Run):
        return []
    texts = [frame.state, *(file["data"] for file in frame.files)]
    return [text for text in texts if isinstance(text, LargeBase64)]
