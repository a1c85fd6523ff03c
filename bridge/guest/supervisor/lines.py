"""Splits the bytes of a pipe into frames."""

from __future__ import annotations

from bridge.guest.processes import EXIT_NOTICE
from bridge.guest.protocol.wire import raw_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

MAX_NOTICE_BYTES = 256


class Lines:
    """Splits chunks of bytes into whole frames, newline included. Overlong ones are dropped.

    A frame is a line with the raw bytes in front of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._parts: List[bytes] = []
        self._size = 0
        self._raw = 0
        self._has_raw = False
        self._skipping = False

    def feed(self, data: bytes) -> List[bytes]:
        """Return the frames that `data` completes."""
        lines = []
        start = 0
        is_last = data.endswith(b"}\n") and b"\n" + EXIT_NOTICE in data[-MAX_NOTICE_BYTES:]
        while start < len(data):
            if is_last and self._raw >= len(data) - start:
                # The program was torn out of a write, and its last frames are no part of that.
                self.forget()
            end = -1 if self._raw > len(data) - start else data.find(b"\n", start + self._raw)
            stop = len(data) if end < 0 else end + 1
            self._raw = max(0, self._raw - (stop - start))
            self._size += stop - start
            if self._size > self._max:
                self._skipping = True
                self._parts = []
            if not self._skipping:
                self._parts.append(data[start:stop])
            start = stop
            if end < 0:
                continue
            line = b"".join(self._parts)
            if not self._has_raw and (size := raw_size(line)):
                self._parts, self._raw, self._has_raw = [line], size, True
                continue
            if not self._skipping:
                lines.append(line)
            self._parts = []
            self._size = 0
            self._has_raw = False
            self._skipping = False
        return lines

    def forget(self) -> None:
        """Drop the frame that has begun, and the rest of it up to the next newline."""
        self._skipping = self._size > 0
        self._parts = []
        self._raw = 0
