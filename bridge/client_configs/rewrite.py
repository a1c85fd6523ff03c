"""Replaces a client's file by its edited content, whole or not at all.

The client may write the file at any time, and takes no lock of ours. So the file is compared with
what was read last before it is replaced; what remains is the moment of one system call.
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
"""Prefix of unfinished files, next to the client's; eight characters follow."""


class _Changed(Exception):
    """The file is not what was read."""


def rewrite(
    path: Path,
    edit: Callable[[bytes | None], bytes | None],
    most: int = 0o777,
    *,
    root: Path | None = None,
    before_replace: Callable[[bytes | None, bytes | None], None] = lambda before, after: None,
) -> bytes | None:
    """Edit a file, None for no file; links stay, as do mode and owner. Return its content. Blocks.

    Args:
        most: The bits of its mode that may stay: 0o700 if other users may not read it.
        root: The project that the file has to be in, links resolved; None if it may be anywhere.
        before_replace: Called with the content before and after once the new content is on the
            disk and the old file still there; again if another program has changed the file.

    Raises:
        UneditableError: The file cannot be edited, read or replaced; it is unchanged.
    """
    real = Path(os.path.realpath(path))
    made: tuple[Path, ...] = ()
    try:
        missing = missing_directories(real)
        if missing and edit(None) is None:
            return None
        made = missing
        with _held_directory(real.parent, root) as directory:
            held = directory / real.name
            for _ in range(3):  # A client that writes at each of them will do so again.
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
        remove_directories(made)
        if not isinstance(error, OSError | ValueError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise UneditableError(f"it cannot be written: {reason}", path=str(path)) from error


@contextmanager
def _held_directory(path: Path, root: Path | None) -> Iterator[Path]:
    """Make and open a directory; yield a path that leads there even if the directory is replaced.

    A program that writes in a project could put a link to the user's own files in its place.
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
        # Elsewhere than on Linux there is no path by a descriptor.
        yield Path(f"/proc/self/fd/{held}") if sys.platform == "linux" else path
    finally:
        os.close(held)


def missing_directories(path: Path) -> tuple[Path, ...]:
    """Return the directories that are made for a file, the outermost first."""
    parents = Path(os.path.realpath(path)).parents
    return tuple(reversed([each for each in parents if not each.exists()]))


def remove_directories(made: tuple[Path, ...]) -> None:
    """Remove directories that were made for a file, as far as they are empty."""
    for directory in reversed(made):
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
    """Replace a file if it is still what was read."""
    # What a bridge left that was killed: no other writes here while the lock is held.
    for path in real.parent.glob(f"{UNFINISHED}????????"):
        with suppress(OSError):
            path.unlink()
    found = real.lstat() if before is not None else None
    # A rename would do it, though the file's mode or owner says not to.
    if found is not None and not (found.st_mode & 0o222 and os.access(real, os.W_OK)):
        raise ValueError("it is read-only; make it writable first (chmod u+w)")
    if found is not None and found.st_nlink > 1:
        raise ValueError(
            f"it has {found.st_nlink} names (hard links), and would part from the others; use a "
            "symbolic link instead"
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
        mode=stat.S_IMODE(found.st_mode) & most if found else 0o600,
        owner=(found.st_uid, found.st_gid) if found else None,
        before_rename=check,
        prefix=UNFINISHED,
    )
    if _read(real) != after:
        # Written at once by a program that may not have seen our change: edit what is there now.
        raise _Changed
