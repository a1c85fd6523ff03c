"""The audit log's directory, and reading from it.

Owns opening it safely, its list of files, and the end of the log as it is on the disk. What is
written there is `bridge.gate.audit.files`'s.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bridge.gate.audit.chain import Line, read_line
from bridge.gate.audit.records import MAX_RECORD_BYTES
from bridge.gate.audit.resuming import Name, Tail, parse_name

MAX_LINE_BYTES = 2 * MAX_RECORD_BYTES
"""Longest line that can be one of ours: with hashes and numbers a record is little longer."""

MAX_TORN_BYTES = 1024 * 1024
"""Read backwards from the end of a file for its last newline; a machine that crashes may leave
zeros there, though hardly ever so many."""

MAX_FILES = 100_000
"""Files that are looked at; in a directory of ours there are a few hundred."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class UnsafeError(Exception):
    """Something in the way is not ours, or others may write it; the text says what."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file of the log.

    Attributes:
        size: Bytes that it had when it was looked at.
    """

    name: Name
    size: int


def open_folder(path: Path, *, create: bool) -> int:
    """Return a descriptor of the directory.

    Raises:
        UnsafeError: Others may write it, or it is not this user's.
        OSError: It cannot be opened or made.
    """
    if create:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.mkdir(exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, _READ | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            message = "it is a link or no directory"
            raise UnsafeError(message) from error
        raise
    try:
        _check(os.fstat(descriptor))
    except UnsafeError:
        os.close(descriptor)
        raise
    return descriptor


def open_file(folder: int, name: str, flags: int) -> int:
    """Return a descriptor of a file in the directory, never of what a link points to.

    Raises:
        UnsafeError: It is no plain file, or not only this user may write it.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(
            name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder
        )
    except OSError as error:
        if error.errno == errno.ELOOP:
            message = f"{name} in it is a link"
            raise UnsafeError(message) from error
        raise
    try:
        _check(os.fstat(descriptor), f"{name} in it ")
    except UnsafeError:
        os.close(descriptor)
        raise
    return descriptor


def _check(found: os.stat_result, what: str = "it ") -> None:
    if what != "it " and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
        message = f"{what}is no plain file, or has other names elsewhere"
        raise UnsafeError(message)
    if found.st_uid != os.geteuid():
        message = f"{what}belongs to another user"
        raise UnsafeError(message)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"{what}may be written by other users"
        raise UnsafeError(message)


def list_files(folder: int) -> list[Found]:
    """Return the log's files in the order in which they were written.

    Raises:
        OSError: The directory cannot be read.
    """
    found: list[Found] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = parse_name(entry.name)
            if name is not None:
                found.append(Found(name=name, size=entry.stat(follow_symlinks=False).st_size))
            if len(found) >= MAX_FILES:
                break
    return sorted(found, key=lambda file: file.name)


def read_tail(folder: int) -> Tail | None:
    """Return the end of the log.

    Raises:
        UnsafeError, OSError: It cannot be read.
    """
    files = [file for file in list_files(folder) if file.size]
    if not files:
        return None
    last, rest = file_end(folder, files[-1].name)
    if last is None and rest and len(files) > 1:
        # A file that holds nothing but a line that was only begun.
        last = file_end(folder, files[-2].name)[0]
    return Tail(name=files[-1].name, last=last, rest=rest)


def file_end(folder: int, name: Name) -> tuple[Line | None, bytes]:
    """Return the last whole line of a file, and what comes after it.

    Of more than can be looked for, what comes after is all that was looked at.

    Raises:
        UnsafeError, OSError: It cannot be read.
    """
    descriptor = open_file(folder, str(name), os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        want = min(size, MAX_LINE_BYTES)
        while True:
            data = _read_at(descriptor, size - want, want)
            before, newline, rest = data.rpartition(b"\n")
            start = before.rfind(b"\n") + 1
            if newline and (start or want == size):
                return read_line(before[start:]), rest
            if want >= min(size, MAX_TORN_BYTES + MAX_LINE_BYTES):
                return None, rest
            want = min(size, want * 4, MAX_TORN_BYTES + MAX_LINE_BYTES)
    finally:
        os.close(descriptor)


def _read_at(descriptor: int, offset: int, size: int) -> bytes:
    pieces = []
    while size and (data := os.pread(descriptor, size, offset)):
        pieces.append(data)
        offset += len(data)
        size -= len(data)
    return b"".join(pieces)
