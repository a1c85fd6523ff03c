"""The audit log's directory: its files, and going through their lines.

Owns that only what is this user's own is opened, never through a link, and that reading takes
bounded memory whatever is there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bridge.gate.audit.records import MAX_RECORD_BYTES, Link, read_line

MAX_LINE_BYTES = 2 * MAX_RECORD_BYTES
"""Longest line that can be one of ours: with hashes and numbers a record is little longer."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)(?:-(\d{6,})|(?:\.\d+)?)\.jsonl")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class UnsafeError(Exception):
    """Something in the way is not ours, or others may write it; the text says what."""


class Found(NamedTuple):
    """A file of the log, with the size that it had when it was looked at; they sort as begun.

    `number` is that of the file in its day, 0 for one of an earlier version, which had one chain.
    """

    day: str
    number: int
    name: str
    size: int


def open_folder(path: Path) -> int:
    """Return a descriptor of the directory, or raise `UnsafeError` or `OSError`."""
    return _checked(path, os.O_RDONLY | os.O_DIRECTORY, None, "it")


def open_file(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file in the directory, or raise `UnsafeError` or `OSError`."""
    return _checked(name, flags, folder, f"{name} in it")


def _checked(path: Path | str, flags: int, folder: int | None, what: str) -> int:
    """Open what is only this user's, never what a link points to."""
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            message = f"{what} is a link or no directory"
            raise UnsafeError(message) from error
        raise
    found, wrong = os.fstat(descriptor), ""
    if folder is not None and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
        wrong = "is no plain file, or has other names elsewhere"
    elif found.st_uid != os.geteuid():
        wrong = "belongs to another user"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "may be written by other users"
    if wrong:
        os.close(descriptor)
        message = f"{what} {wrong}"
        raise UnsafeError(message)
    return descriptor


def list_files(folder: int) -> list[Found]:
    """Return the log's files in the order in which they were begun."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Another bridge may be removing old ones.
            with suppress(FileNotFoundError):
                if name := _NAME.fullmatch(entry.name):
                    size = entry.stat(follow_symlinks=False).st_size
                    found.append(Found(name[1], int(name[2] or 0), entry.name, size))
    return sorted(found)


@contextmanager
def opened(directory: Path) -> Iterator[tuple[int, list[Found]]]:
    """Open the directory and list its files, as they are at this moment."""
    folder = open_folder(directory)
    try:
        yield folder, list_files(folder)
    finally:
        os.close(folder)


def lines(folder: int, name: str, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file with their newlines, and where each ends.

    Of one that is too long to be ours only the beginning and the end are kept.

    Args:
        start: Where to begin: where a line does.
    """
    with os.fdopen(open_file(folder, name), "rb") as file:
        file.seek(start)
        while line := file.readline(MAX_LINE_BYTES):
            rest = line
            start += len(line)
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES)
                start += len(rest)
            yield line if rest is line else line + rest[-1:], start


def last_lines(folder: int, file: Found, count: int) -> int:
    """Return where the last lines of a file begin."""
    want = MAX_LINE_BYTES
    with os.fdopen(open_file(folder, file.name), "rb") as opened_file:
        while True:
            start = opened_file.seek(max(0, file.size - want))
            before, *rest = opened_file.read(want).rsplit(b"\n", count + 1)
            if len(rest) == count + 1:
                return start + len(before) + 1
            # So many lines of ours are not longer.
            if not start or want > (count + 1) * MAX_LINE_BYTES:
                return start
            want *= 4


def last_link(folder: int, file: Found) -> Link | None:
    """Return the place of a file's last record; None if there is none as it was written."""
    link = None
    for line, _ in lines(folder, file.name, last_lines(folder, file, 1)):
        if line.endswith(b"\n"):
            found = read_line(line)
            link = None if found is None else found.link
    return link
