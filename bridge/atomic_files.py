"""Writes files atomically, and locks them against other bridges.

A new file is written next to the old one and then renamed over it. A reader never sees half a file,
and a killed bridge leaves the old file.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = "writing-"
"""Prefix of temporary files' names. A dead bridge may leave such a file."""


def replace_file(
    path: Path,
    data: bytes,
    *,
    durable: bool = False,
    mode: int = 0o600,
    owner: tuple[int, int] | None = None,
    before_rename: Callable[[], None] | None = None,
    prefix: str = UNFINISHED,
) -> None:
    """Write `data` to `path` atomically. The directory must exist.

    Args:
        durable: Whether the file must survive a power cut; waits for the disk.
        owner: The file's user and group; ignored if this user may not set them.
        before_rename: Called directly before the rename. An exception keeps the old file.
        prefix: Prefix of the temporary file's name.

    Raises:
        OSError: The file cannot be written. The old file is unchanged.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if owner is not None:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), *owner)
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if before_rename is not None:
            before_rename()
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    if durable:
        with suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextmanager
def exclusive_lock(lock: Path, *, seconds: float = 1.0) -> Iterator[None]:
    """Lock a file or directory within the context. Blocks: use in threads.

    A missing file is created, and remains.

    Raises:
        TimeoutError: Another process holds the lock.
        OSError: The file cannot be created or opened.
    """
    flags = os.O_RDONLY if lock.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(lock, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("another bridge holds the lock") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> bytes:
    """Return a regular file's content. Blocks: use in threads.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file is a link or cannot be read.
        ValueError: The path is not a regular file, or the file exceeds `most` bytes.
    """
    # Opening a pipe without O_NONBLOCK would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
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
