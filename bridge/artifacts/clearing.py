"""What is taken out of the store on disk, and the sums of what is in it.

Everything here is done by whoever has the turn; see `shelves`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress

from bridge.artifacts.entries import Entry
from bridge.artifacts.folders import file_size, folder, if_there, names, open_file, remove_file
from bridge.artifacts.tidying import Held

_TOTALS_BYTES = 40
"""Of the file that has them: two numbers of up to nineteen digits."""

_DIGEST = 64


def remove_entries(root: int, gone: Iterable[Held]) -> int:
    """Remove entries; return how many there were."""
    by_owner: dict[str, list[Entry]] = {}
    for name, entry in gone:
        by_owner.setdefault(name, []).append(entry)
    count = 0
    for name, entries in by_owner.items():
        with (
            if_there(),
            folder(root, "owners") as owners,
            folder(owners, name) as own,
        ):
            count += sum(remove_file(own, entry.file_name) for entry in entries)
    return count


def remove_contents(root: int, digests: Iterable[str]) -> int:
    """Remove contents, which no entry may speak of any more; return how many bytes they had."""
    by_folder: dict[str, list[str]] = {}
    for digest in digests:
        by_folder.setdefault(digest[:2], []).append(digest)
    freed = 0
    with if_there(), folder(root, "blobs") as blobs:
        for name, inside in by_folder.items():
            with if_there(), folder(blobs, name) as part:
                for digest in inside:
                    freed += file_size(part, digest) or 0
                    remove_file(part, digest)
    return freed


def totals(root: int) -> tuple[int, int] | None:
    """Return the size and the number of what is kept, near enough; None if nobody knows."""
    try:
        descriptor = open_file(root, "totals")
    except FileNotFoundError:
        return None
    try:
        size, count = os.read(descriptor, _TOTALS_BYTES).split()
        return int(size), int(count)
    except ValueError:
        return None
    finally:
        os.close(descriptor)


def set_totals(root: int, size: int, count: int) -> None:
    """Note the size and the number of what is kept."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open("totals", flags, 0o600, dir_fd=root)
    try:
        # In one write of one size, so that there is never a mixture of two.
        os.pwrite(descriptor, f"{size} {count}".ljust(_TOTALS_BYTES).encode(), 0)
    finally:
        os.close(descriptor)


def contents(root: int) -> dict[str, int]:
    """Return the sizes of the contents there are; removes what is none, such as a link."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError), folder(root, "blobs") as blobs:
        for name in names(blobs):
            with if_there(), folder(blobs, name) as part:
                for digest in names(part):
                    size = file_size(part, digest)
                    if size is not None and len(digest) == _DIGEST and digest.startswith(name):
                        sizes[digest] = size
                    else:
                        with suppress(OSError):
                            remove_file(part, digest)
    return sizes


def remove_unfinished(root: int) -> int:
    """Remove the files of bridges that are dead; return how many."""
    removed = 0
    with if_there(), folder(root, "writing") as writing:
        for name in names(writing):
            try:
                descriptor = open_file(writing, name)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EINVAL):
                    with suppress(OSError):
                        removed += remove_file(writing, name)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                removed += remove_file(writing, name)
            except BlockingIOError:  # Somebody is writing it.
                continue
            finally:
                os.close(descriptor)
    return removed


def remove_empty(root: int) -> None:
    """Remove the directories of owners of whom nothing is kept."""
    with if_there(), folder(root, "owners") as owners:
        for name in names(owners):
            with suppress(OSError):
                os.rmdir(name, dir_fd=owners)
