"""Contents as files, each once, by the SHA-256 of what is in it.

    writing/            what is not finished; a bridge holds a lock on each of its own
    ab/<digest>         contents

A content is complete before it has its name. It is placed and removed by whoever writes to the
database in that moment, so that none goes that something is about to speak of. Everything here
blocks, and raises OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.private_files import make_directory

_WRITING = "writing"
_DIGEST = re.compile("[0-9a-f]{64}")
_PREFIX = re.compile("[0-9a-f]{2}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PIECE = 1024 * 1024
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A file that is being written, locked by the open descriptor."""

    descriptor: int
    path: Path

    def write(self, data: bytes) -> None:
        """Append data, in several writes if one takes only a part."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]


class Blobs:
    """The directory, which is made when it is first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self) -> Unfinished:
        """Begin a file without a name."""
        folder = self._folder(_WRITING)
        while True:
            path = folder / secrets.token_hex(8)
            descriptor = os.open(path, _NEW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                os.fchmod(descriptor, 0o600)
                return Unfinished(descriptor=descriptor, path=path)
            # Another bridge tidied between the two lines above and took it for a dead bridge's.
            os.close(descriptor)

    def place(self, unfinished: Unfinished, digest: str, *, durable: bool = False) -> None:
        """Give a finished file its name; its descriptor stays open.

        Args:
            durable: Whether it has to survive a power cut from now on.
        """
        path = self._folder(digest[:2]) / digest
        if durable:
            os.fsync(unfinished.descriptor)
        elif _is_same(unfinished.descriptor, path):
            # To put a file in another's place makes some file systems write it out at once.
            unfinished.path.unlink(missing_ok=True)
            return
        # Over one that is there, which may have been damaged since.
        unfinished.path.replace(path)

    def discard(self, unfinished: Unfinished) -> None:
        """Close a file, and remove it if it has no name yet."""
        # A file that stays is found by the next tidying, once its lock is free.
        with suppress(OSError):
            unfinished.path.unlink(missing_ok=True)
        os.close(unfinished.descriptor)

    def open(self, digest: str) -> int:
        """Return a descriptor of a content.

        Raises:
            FileNotFoundError: There is no such.
            OSError: It is a link or no plain file.
        """
        descriptor = os.open(self.root / digest[:2] / digest, _READ)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a plain file")
        return descriptor

    def remove(self, digest: str) -> bool:
        """Remove a content, or the link in its place; tell whether it was there."""
        try:
            (self.root / digest[:2] / digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def all(self) -> set[str]:
        """Return the digests of the contents there are; removes what is none, such as a link."""
        found: set[str] = set()
        for folder in self._folders():
            for entry in os.scandir(folder):
                whole = _DIGEST.fullmatch(entry.name) and entry.name.startswith(folder.name)
                if whole and entry.is_file(follow_symlinks=False):
                    found.add(entry.name)
                elif not entry.is_dir(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)
        return found

    def remove_unfinished(self) -> int:
        """Remove the files of bridges that are dead; return how many."""
        removed = 0
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._folder(_WRITING, make=False)):
                try:
                    descriptor = os.open(entry.path, _READ)
                except OSError as error:
                    # Not there any more, or a link.
                    removed += error.errno == errno.ELOOP
                    if error.errno == errno.ELOOP:
                        Path(entry.path).unlink(missing_ok=True)
                    continue
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    Path(entry.path).unlink()
                    removed += 1
                except (BlockingIOError, FileNotFoundError):
                    continue  # Another bridge is writing it, or was quicker.
                finally:
                    os.close(descriptor)
        return removed

    def _folders(self) -> list[Path]:
        try:
            names = [entry.name for entry in os.scandir(self.root) if entry.is_dir()]
        except FileNotFoundError:
            return []
        return [self._folder(name) for name in names if _PREFIX.fullmatch(name)]

    def _folder(self, name: str, *, make: bool = True) -> Path:
        """Return a directory that is this user's alone.

        Raises:
            FileNotFoundError: It is not there, and is not to be made.
            OSError: It cannot be made, is a link, or belongs to another user.
        """
        for path in (self.root, self.root / name):
            if make:
                make_directory(path)
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a directory of contents is a link")
            if found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the directory belongs to another user")
            if found.st_mode & 0o077:
                path.chmod(0o700)
        return self.root / name


def _is_same(descriptor: int, path: Path) -> bool:
    """Return whether a file is there and has the content of the one that is open."""
    try:
        other = os.open(path, _READ)
    except OSError:
        return False
    try:
        size, at = os.fstat(descriptor).st_size, 0
        if not stat.S_ISREG(os.fstat(other).st_mode) or os.fstat(other).st_size != size:
            return False
        while at < size:
            part = os.pread(descriptor, _PIECE, at)
            if not part or part != os.pread(other, _PIECE, at):
                return False
            at += len(part)
    finally:
        os.close(other)
    return True
