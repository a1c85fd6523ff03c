"""File descriptors of the guest: private ones, and queues for non-blocking ones.

Owns moving the channel to descriptors that programs do not touch by accident. Knows no frames.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Iterable, List, Optional, Tuple

CHUNK_BYTES = 256 * 1024  # Bytes read per system call at most.


def private(fd: int) -> int:
    """Return a high, close-on-exec duplicate of `fd`, which is closed."""
    # Programs that close "everything from 3 to 255" before a fork are common.
    for lowest in (900, 200, 64, 3):
        try:
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(fd)
        return copy
    return fd


def claim_channel() -> "tuple[int, int]":
    """Move the channel from fd 0 and 1; return its reading and its writing descriptor.

    Afterwards 0 is empty and 1 is stderr: a stray print cannot corrupt a frame.
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
    """Return this process's open descriptors; all below 1024 if the system does not list them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except (OSError, ValueError):
        return list(range(1024))


def close_others(keep: Iterable[int]) -> None:
    kept = frozenset(keep)
    for fd in open_descriptors():
        if fd in kept:
            continue
        try:
            os.close(fd)
        except OSError:
            # Not open: the listing's own descriptor, or an assumed one.
            continue


def read_some(fd: int) -> Optional[bytes]:
    """Return available bytes of a non-blocking descriptor: None for none yet, empty at its end."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        # A reset socket counts as the end.
        return b""


class Outbox:
    """A queue of bytes to write to a non-blocking descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self.broken = False
        self._chunks: Deque[memoryview] = deque()

    def put(self, *parts: bytes) -> None:
        """Queue bytes, unless the reader has closed its end."""
        for data in parts:
            if data and not self.broken:
                self._chunks.append(memoryview(data))
                self.size += len(data)

    def drop(self) -> None:
        """Drop the queue: the reader has closed its end."""
        self.broken = True
        self._chunks.clear()
        self.size = 0

    def flush(self) -> None:
        """Write as much as the descriptor takes without blocking, waking its reader once."""
        while self._chunks:
            try:
                # As many as POSIX promises to take.
                written = os.writev(self.fd, list(islice(self._chunks, 16)))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.drop()
                return
            self.size -= written
            while written:
                chunk = self._chunks.popleft()
                if written < len(chunk):
                    self._chunks.appendleft(chunk[written:])
                written -= min(written, len(chunk))


def file_version(found: os.stat_result) -> Tuple[int, int, int, int]:
    """Return inode, size and the times of a file's last changes, of content and of anything."""
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
