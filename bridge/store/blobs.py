"""Stores each content once, as a file named by its SHA-256.

`writing/` has unfinished files, each locked by its bridge; `ab/<digest>` has complete contents.
Only a write transaction names or removes a content, so that no removed one has a new row. Blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.private_files import make_directory, restrict

if TYPE_CHECKING:
    from sqlalchemy import Connection

_WRITING = "writing"
_DIGEST = re.compile("[0-9a-f]{64}")
_PREFIX = re.compile("[0-9a-f]{2}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A file that is being written. Its lock shows other bridges that the writer is alive."""

    descriptor: int
    path: Path

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]


@dataclass(frozen=True, kw_only=True)
class OpenBlob:
    size: int
    read: Callable[[int, int], bytes]
    close: Callable[[], None]


class Blobs:
    def __init__(self, root: Path) -> None:
        self.root = root

    def exist(self) -> bool:
        return self.root.is_dir()

    def begin(self) -> Unfinished:
        folder = self._folder(_WRITING)
        while True:
            path = folder / secrets.token_hex(8)
            descriptor = os.open(path, _NEW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                os.fchmod(descriptor, 0o600)
                return Unfinished(descriptor=descriptor, path=path)
            # Before the lock, another bridge removed it as a dead bridge's file.
            os.close(descriptor)

    def prepare(self, unfinished: Unfinished, digest: str) -> None:
        """Do the slow part of `publish`, before the transaction."""

    def publish(self, connection: Connection | None, unfinished: Unfinished, digest: str) -> None:
        """Name a finished file, in the transaction of the rows that refer to it."""
        # An existing file is replaced, because it may be damaged.
        unfinished.path.replace(self._folder(digest[:2]) / digest)

    def discard(self, unfinished: Unfinished) -> None:
        """Close a file, and remove it if it has no name yet."""
        # If this fails, `remove_unfinished` removes the file once its lock is free.
        with suppress(OSError):
            unfinished.path.unlink(missing_ok=True)
        os.close(unfinished.descriptor)

    def open(self, digest: str) -> OpenBlob:
        """Open a content; raise FileNotFoundError if it is missing, OSError if it is a link."""
        descriptor = os.open(self.root / digest[:2] / digest, _READ)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a plain file")
        read, close = partial(os.pread, descriptor), partial(os.close, descriptor)
        return OpenBlob(size=status.st_size, read=read, close=close)

    def remove(self, connection: Connection | None, digest: str) -> bool:
        """Remove a content, or a link with its name; return whether it existed."""
        try:
            (self.root / digest[:2] / digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def all(self) -> set[str]:
        """Return the digests of all contents; remove other files and links."""
        digests: set[str] = set()
        if not self.root.exists():
            return digests
        folders = [each.name for each in os.scandir(self.root) if each.is_dir()]
        for prefix in filter(_PREFIX.fullmatch, folders):
            for entry in os.scandir(self._folder(prefix)):
                whole = _DIGEST.fullmatch(entry.name) and entry.name.startswith(prefix)
                if whole and entry.is_file(follow_symlinks=False):
                    digests.add(entry.name)
                elif not entry.is_dir(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)
        return digests

    def remove_unfinished(self) -> int:
        removed = 0
        if not (self.root / _WRITING).is_dir():
            return removed
        for entry in os.scandir(self._folder(_WRITING)):
            # Another bridge may be writing the file, or may have removed it.
            with suppress(OSError), ExitStack() as stack:
                if not entry.is_symlink():
                    descriptor = os.open(entry.path, _READ)
                    stack.callback(os.close, descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(entry.path).unlink()
                removed += 1
        return removed

    def _folder(self, name: str) -> Path:
        for path in (self.root, self.root / name):
            make_directory(path)
            restrict(path)
        return self.root / name
