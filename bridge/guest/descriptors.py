"""File descriptors of the guest: which are private, and how they move bytes.

Owns the moving of the channel away from the program's reach and the queues in front of
non-blocking descriptors. Knows nothing of frames.
"""

from __future__ import annotations

import collections
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Iterable, List, Optional

PRIVATE_FROM = (900, 200, 64, 3)
"""Private descriptors start here, the first that the limit on open files allows: programs that
close "everything from 3 to 255" before a fork are common."""

CHUNK_BYTES = 256 * 1024
"""Bytes moved per system call at most."""


def private(fd: int) -> int:
    """Return a high, close-on-exec duplicate of `fd`, which is closed."""
    for lowest in PRIVATE_FROM:
        try:
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(fd)
        return copy
    return fd


def claim_channel() -> "tuple[int, int]":
    """Take the channel off fd 0 and 1; return its reading and its writing descriptor.

    Afterwards 0 is empty and 1 leads to stderr: what prints by accident can tear no frame.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    reader = private(os.dup(0))
    os.dup2(null, 0, inheritable=True)
    if null > 2:
        os.close(null)
    writer = private(os.dup(1))
    os.dup2(2, 1, inheritable=True)
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    return reader, writer


def open_descriptors() -> List[int]:
    """Return this process's open descriptors, or a guess where the system does not list them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except (OSError, ValueError):
        return list(range(1024))


def close_others(keep: Iterable[int]) -> None:
    """Close every descriptor but those to `keep`."""
    kept = frozenset(keep)
    for fd in open_descriptors():
        if fd in kept:
            continue
        try:
            os.close(fd)
        except OSError:
            # Not open: the listing's own descriptor, or a guess.
            continue


def read_some(fd: int) -> Optional[bytes]:
    """Return what a non-blocking descriptor has: None for nothing yet, empty for its end."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        # A reset socket is an end like any other.
        return b""


class Outbox:
    """Bytes on their way to a non-blocking descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self.broken = False
        self._chunks: Deque[memoryview] = collections.deque()

    def put(self, data: bytes) -> None:
        """Queue `data`; nothing is kept for a reader that has gone."""
        if data and not self.broken:
            self._chunks.append(memoryview(data))
            self.size += len(data)

    def drop(self) -> None:
        """Forget what is queued: nobody will read it."""
        self.broken = True
        self._chunks.clear()
        self.size = 0

    def flush(self) -> None:
        """Write what the descriptor takes without waiting."""
        while self._chunks:
            chunk = self._chunks[0]
            try:
                written = os.write(self.fd, chunk[:CHUNK_BYTES])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.drop()
                return
            self.size -= written
            if written == len(chunk):
                self._chunks.popleft()
            else:
                self._chunks[0] = chunk[written:]


class Lines:
    """Bytes in any portions to whole lines, newline included. Overlong lines are left out."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._parts: List[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> List[bytes]:
        """Return the lines that `data` completes."""
        lines = []
        start = 0
        while start < len(data):
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end + 1
            self._size += stop - start
            if self._size > self._max:
                self._skipping = True
                self._parts = []
            if not self._skipping:
                self._parts.append(data[start:stop])
            if end >= 0:
                if not self._skipping:
                    lines.append(b"".join(self._parts))
                self._parts = []
                self._size = 0
                self._skipping = False
            start = stop
        return lines

    def forget(self) -> None:
        """Leave out the line that has begun; what comes of it later is the end of none."""
        self._skipping = self._size > 0
        self._parts = []
