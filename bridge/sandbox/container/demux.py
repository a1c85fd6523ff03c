"""The engine's attach stream: stdout and stderr, interleaved in frames.

Owns the decoding of bytes into the two streams and the bounded tail of stderr. Does no I/O: bytes
are fed in however the socket happened to split them.

A frame is an eight-byte header (stream number, three zero bytes, big-endian length) and a payload.
Engines cut frames anywhere, so a frame says nothing about lines or messages, and a payload is
passed on as it comes; nothing is gathered up here.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

HEADER_BYTES = 8
_HEADER = struct.Struct(">BxxxL")

_STDOUT_STREAMS = frozenset({0, 1})
"""1 is stdout. 0 is what an engine echoes of stdin, which its documentation sends to stdout."""
_STDERR = 2
_ENGINE_ERROR = 3
"""What the engine itself has to say, e.g. that it could not go on copying."""

DIAGNOSTIC_BYTES = 16 * 1024
"""Kept of a sandbox's stderr. A guest writes there only when it dies before it can report, and a
Python traceback fits many times."""


class FramingError(ValueError):
    """The bytes are not an attach stream. Raised by `FrameDecoder`."""


class Tail:
    """The last bytes of an endless stream."""

    def __init__(self, limit: int = DIAGNOSTIC_BYTES) -> None:
        self._limit = limit
        self._parts: deque[bytes] = deque()
        self._size = 0

    def __len__(self) -> int:
        return min(self._size, self._limit)

    def append(self, data: bytes) -> None:
        """Add `data`, letting go of what is too old."""
        if not data:
            return
        data = data[-self._limit :]
        self._parts.append(data)
        self._size += len(data)
        # One part more than needed may stay, so that no part is ever cut: at most twice the limit.
        while self._size - len(self._parts[0]) >= self._limit:
            self._size -= len(self._parts.popleft())
        if len(self._parts) > self._limit // HEADER_BYTES:
            joined = b"".join(self._parts)[-self._limit :]
            self._parts = deque([joined])
            self._size = len(joined)

    def text(self) -> str:
        """What is kept, as text; bytes that are not UTF-8 are shown escaped."""
        return b"".join(self._parts)[-self._limit :].decode("utf-8", "backslashreplace")


class FrameDecoder:
    """Turns attach-stream bytes into stdout, setting stderr aside.

    Attributes:
        stderr: The tail of the process's stderr.
        engine_error: The tail of what the engine said in the stream, if anything.
        on_error: Given all of stderr as well, if somebody wants it.
    """

    def __init__(self) -> None:
        self.stderr = Tail()
        self.engine_error = Tail()
        self.on_error: Callable[[bytes], None] | None = None
        self._header = b""
        self._stream = 0
        self._left = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without having been cut short."""
        return not self._left and not self._header

    def feed(self, data: bytes) -> bytes:
        """Return the stdout bytes in the next piece of the stream.

        Raises:
            FramingError: A header names no stream that there is.
        """
        out: list[bytes] = []
        view = memoryview(data)
        position = 0
        while position < len(view):
            if self._left:
                payload = bytes(view[position : position + self._left])
                position += len(payload)
                self._left -= len(payload)
                self._sort(payload, out)
            else:
                missing = HEADER_BYTES - len(self._header)
                self._header += bytes(view[position : position + missing])
                position += missing
                self._open_frame()
        return out[0] if len(out) == 1 else b"".join(out)

    def _open_frame(self) -> None:
        if len(self._header) < HEADER_BYTES:
            return
        self._stream, self._left = _HEADER.unpack(self._header)
        if self._stream > _ENGINE_ERROR or self._header[1:4] != b"\0\0\0":
            message = f"not an attach stream: frame header {self._header!r}"
            raise FramingError(message)
        self._header = b""

    def _sort(self, payload: bytes, out: list[bytes]) -> None:
        if self._stream in _STDOUT_STREAMS:
            out.append(payload)
        elif self._stream == _STDERR:
            self.stderr.append(payload)
            if self.on_error is not None:
                self.on_error(payload)
        else:
            self.engine_error.append(payload)
