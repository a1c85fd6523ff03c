"""Replaces a client's file by its edited content, whole or not at all.

The client may write the file at any time and takes no lock. So the file is compared with the
content read before, immediately before the replacement. A race of one system call remains.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bridge.atomic_files import exclusive_lock, read_regular, replace_file
from bridge.discovery.documents import MAX_FILE_BYTES
from bridge.errors import BridgeError, UneditableError
from bridge.private_files import make_directory, open_below

UNFINISHED = ".mcp-code-bridge-"
"""Prefix of unfinished files next to the client's file; eight characters follow."""


class _Changed(Exception):
    """The file differs from the content that was read."""


def rewrite(
    path: Path,
    edit: Callable[[bytes | None], bytes | None],
    most: int = 0o777,
    *,
    root: Path | None = None,
    before_replace: Callable[[bytes | None, bytes | None], None] = lambda before, after: None,
) -> bytes | None:
    """Edit a file in place, keeping links, mode and owner; return the new content. Blocks.

    Raises an `UneditableError` if the file cannot be edited, read or replaced; it is unchanged.

    Args:
        edit: Returns the new content for the present one; None means no file.
        most: A mask for the file's mode: 0o700 if other users must not read it.
        root: The project that must contain the file, with links resolved; None for no limit.
        before_replace: Called with the old and new content when the new content is on the disk and
            before the old file is replaced. Called again after each change by another program.
    """
    real = Path(os.path.realpath(path))
    new_directories: tuple[Path, ...] = ()
    try:
        missing = missing_directories(real)
        if missing and edit(None) is None:
            return None
        new_directories = missing
        with _held_directory(real.parent, root) as directory:
            held = directory / real.name
            for _ in range(3):  # A client that writes during each attempt will continue to.
                before = _read(held)
                after = edit(before)
                if after == before:
                    return after
                with exclusive_lock(real.parent), suppress(_Changed):
                    _replace(held, before, after, most, partial(before_replace, before, after))
                    return after
        raise BridgeError(
            f"{path} was not changed: another program wrote it during each of 3 attempts.",
            remedy="Close the client that it belongs to, then try again.",
            code="changed_meanwhile",
        )
    except BaseException as error:
        remove_directories(new_directories)
        if not isinstance(error, OSError | ValueError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise UneditableError(f"it cannot be written: {reason}", path=str(path)) from error


@contextmanager
def _held_directory(path: Path, root: Path | None) -> Iterator[Path]:
    """Create and open a directory; yield a path to it that survives its replacement.

    A program with write access to a project could replace it by a link to the user's own files.
    """
    named = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
    if root is None:
        make_directory(path)
        held = os.open(path, named)
    else:
        real = Path(os.path.realpath(root))
        if not path.is_relative_to(real):
            raise OSError(0, f"it leads out of the project, to {path}")
        above = os.open(real, named)
        try:
            held = open_below(above, path.relative_to(real).parts, mode=0o700)
        finally:
            os.close(above)
    try:
        # Only Linux has paths by descriptor.
        yield Path(f"/proc/self/fd/{held}") if sys.platform == "linux" else path
    finally:
        os.close(held)


def missing_directories(path: Path) -> tuple[Path, ...]:
    """Return the directories that a file still needs, the outermost first."""
    parents = Path(os.path.realpath(path)).parents
    return tuple(reversed([each for each in parents if not each.exists()]))


def remove_directories(directories: tuple[Path, ...]) -> None:
    """Remove the directories that are empty."""
    for directory in reversed(directories):
        with suppress(OSError):
            directory.rmdir()


def _read(real: Path) -> bytes | None:
    try:
        return read_regular(real, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None


def _replace(
    real: Path, before: bytes | None, after: bytes | None, most: int, record: Callable[[], None]
) -> None:
    """Replace a file if its content is still `before`."""
    # Under the lock, unfinished files can only come from a bridge that was killed.
    for path in real.parent.glob(f"{UNFINISHED}????????"):
        with suppress(OSError):
            path.unlink()
    status = real.lstat() if before is not None else None
    # A rename ignores the file's own mode and owner, so they are checked here.
    if status is not None and not (status.st_mode & 0o222 and os.access(real, os.W_OK)):
        raise ValueError("it is read-only; make it writable first (chmod u+w)")
    if status is not None and status.st_nlink > 1:
        raise ValueError(
            f"it has {status.st_nlink} hard links, and an edit would separate it from the others; "
            "use a symbolic link instead"
        )

    def check() -> None:
        if _read(real) != before:
            raise _Changed
        record()
        if _read(real) != before:
            raise _Changed

    if after is None:
        check()
        real.unlink()
        return
    replace_file(
        real,
        after,
        durable=True,
        mode=stat.S_IMODE(status.st_mode) & most if status else 0o600,
        owner=(status.st_uid, status.st_gid) if status else None,
        before_rename=check,
        prefix=UNFINISHED,
    )
    if _read(real) != after:
        # Another program wrote the file immediately, perhaps without our change: edit it again.
        raise _Changed
