"""Directories that are held open, so that nothing below them is ever reached through a link.

Owns how the store's own directories are made and opened, that they are this user's alone, and how a
system's refusal becomes one of the bridge's errors. Knows nothing of what is in them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.errors import ArtifactStoreError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def root_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Hold the store's own directory open.

    Raises:
        OSError: It is not there, no directory, a link, or somebody else's.
    """
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, _FOLDER)
    try:
        _claim(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def if_there() -> Iterator[None]:
    """Leave out what needs a directory that is not there, or is a link in place of one.

    Nothing else is left out: what could not be read must not look as if it were not there, or it
    would be tidied away.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise


@contextmanager
def folder(parent: int, name: str, *, make: bool = False) -> Iterator[int]:
    """Hold a directory in one that is open.

    Raises:
        OSError: It is not there, no directory, a link, or somebody else's.
    """
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # Another bridge was quicker.
            os.mkdir(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        _claim(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _claim(descriptor: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the directory belongs to somebody else")
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o700)


def names(descriptor: int) -> list[str]:
    """Return the names in a directory, in no order."""
    return os.listdir(descriptor)


def new_file(parent: int, name: str) -> int:
    """Make a file that was not there, for this user alone, and return its descriptor.

    Raises:
        OSError: It was there, or cannot be made.
    """
    return os.open(name, _NEW_FILE, 0o600, dir_fd=parent)


def open_file(parent: int, name: str) -> int:
    """Open a plain file to be read and return its descriptor.

    Raises:
        OSError: It is not there, a link, or something else than a plain file.
    """
    descriptor = os.open(name, _FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file")
    return descriptor


def file_size(parent: int, name: str) -> int | None:
    """Return the size of a plain file; None if there is none."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def remove_file(parent: int, name: str) -> bool:
    """Remove a file, or the link that it is; tell whether it was there."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, where one write may take only a part.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def translated(doing: str, root: Path) -> Iterator[None]:
    """Have what the system refuses come out as an error of the bridge.

    Args:
        doing: What was to be done, as the end of "... cannot be".

    Raises:
        ArtifactStoreError: It was refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = f"Nothing more can be {doing}: the disk is full."
            remedy = (
                "Free space on it, or remove what is not needed any more: "
                "mcp-code-bridge artifacts rm."
            )
        else:
            reason = error.strerror or str(error) or type(error).__name__
            message = f"What programs leave cannot be {doing}: {reason}."
            remedy = "The directory has to be one that this user alone can write to."
        raise ArtifactStoreError(message, remedy=remedy, host_detail=f"[{root}]") from error
