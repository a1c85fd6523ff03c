"""Files that are written whole or not at all, and by one bridge at a time.

Owns the one way in which the bridge's own files are replaced: beside the old one, then renamed over
it, so that no reader sees half of one and a bridge that is killed leaves the old. Owns the lock
files, too, with which bridges take turns where one must not undo what another has just written.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = "writing-"
"""How the names of files begin that are being written; one that stays was left by a dead bridge."""

TURN_SECONDS = 1.0
"""For a lock file. What is done under one takes milliseconds; who has it for longer hangs."""

_TURN_PAUSE_SECONDS = 0.02


def replace_file(path: Path, data: bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Write `data` to `path`, readable by this user alone. Its directory must exist.

    Args:
        durable: Whether it has to survive a power cut from now on; waits for the disk.
        mode: Who else may do what with it, where it is not only the bridge's.

    Raises:
        OSError: It cannot be written. The old file is as it was.
    """
    # Made with mode 0600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Flush a directory's names to the disk, where its file system can do that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def exclusive_lock(lock: Path, *, seconds: float = TURN_SECONDS) -> Iterator[None]:
    """Hold a lock file, which is made if need be and stays. Blocks; for threads.

    Args:
        seconds: For which it is waited for.

    Raises:
        TimeoutError: Another process holds it.
        OSError: There can be none.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("another bridge keeps the lock") from None
                time.sleep(_TURN_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> bytes:
    """Return what a regular file holds. Blocks; for threads.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read, or is a link.
        ValueError: It is something else, or larger than `most` bytes.
    """
    # Not blocking, in case it is a pipe.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return data
