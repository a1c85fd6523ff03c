"""Writes files whole or not at all, and by one bridge at a time.

A new file is written next to the old one and renamed over it, so that no reader sees half of one
and a bridge that is killed leaves the old one. With lock files, bridges take turns where one must
not undo what another has just written.
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
"""Prefix of unfinished files' names; one that stays was left by a dead bridge."""


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
    """Write `data` to `path`, readable by this user alone. Its directory must exist.

    Args:
        durable: Whether it has to survive a power cut from now on; waits for the disk.
        owner: The file's user and group, as far as this user may give it to them.
        before_rename: Called last before the old file goes; what it raises leaves the old file.
        prefix: Of the unfinished file's name, where others have files too.

    Raises:
        OSError: It cannot be written. The old file is unchanged.
    """
    # Made with mode 0600.
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
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk, if its file system supports that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def exclusive_lock(lock: Path, *, seconds: float = 1.0) -> Iterator[None]:
    """Lock a file while this is open; it is made if needed and stays. Blocks: use in threads.

    A directory can be locked too, where no file may be left.

    Raises:
        TimeoutError: Another process holds it.
        OSError: The file cannot be made or opened.
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
                    raise TimeoutError("another bridge keeps the lock") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> bytes:
    """Return a regular file's content. Blocks: use in threads.

    Raises:
        FileNotFoundError: There is no such file.
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
