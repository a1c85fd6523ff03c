"""Reading the audit log back.

Owns going through its files with bounded memory, and the last records of it. Whether it has been
tampered with is `bridge.gate.audit.verifying`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.gate.audit.folder import MAX_LINE_BYTES, Found, list_files, open_file, open_folder
from bridge.gate.audit.resuming import Name
from bridge.gate.canonical import digest
from bridge.model import Json

CHUNK_BYTES = 256 * 1024
"""Read at a time."""

MAX_TAIL = 10_000
"""Records that are returned from the end at once."""


@dataclass(frozen=True, kw_only=True)
class At:
    """A record and where it stands.

    Attributes:
        line: From 1.
    """

    name: Name
    line: int
    record: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class RawLine:
    """A line as it stands in a file, without its newline.

    Attributes:
        data: What it holds; not all of it if it is longer than any line of ours.
        size: Of all of it.
        complete: Whether there is a newline.
        whole_digest: Of all of it, where `data` is not that.
    """

    number: int
    data: bytes
    size: int
    complete: bool
    whole_digest: str = ""

    @property
    def digest(self) -> str:
        """Digest of all of it."""
        return self.whole_digest or digest(self.data)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place between two lines.

    Attributes:
        name: The file; None before there is one.
    """

    name: Name | None = None
    offset: int = 0


@contextmanager
def opened(directory: Path) -> Iterator[tuple[int, list[Found]]]:
    """Open the directory and list its files, as they are at this moment.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    folder = open_folder(directory, create=False)
    try:
        yield folder, list_files(folder)
    finally:
        os.close(folder)


def lines(folder: int, file: Found, start: int = 0) -> Iterator[RawLine]:
    """Yield the lines of a file up to the size that it was found with.

    Args:
        start: Where to begin: where a line does.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    descriptor = open_file(folder, str(file.name), os.O_RDONLY)
    try:
        gathered, number, at = _Gathered(), 0, start
        while at < file.size:
            data = os.pread(descriptor, min(CHUNK_BYTES, file.size - at), at)
            if not data:
                break
            at += len(data)
            begin = 0
            while (end := data.find(b"\n", begin)) >= 0:
                number += 1
                gathered.add(data[begin:end])
                yield gathered.line(number, complete=True)
                gathered, begin = _Gathered(), end + 1
            gathered.add(data[begin:])
        if not gathered.empty:
            yield gathered.line(number + 1, complete=False)
    finally:
        os.close(descriptor)


def records(folder: int, file: Found, needle: bytes = b"", start: int = 0) -> Iterator[At]:
    """Yield the records of a file that can be read, and hold some bytes; nothing is verified.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    for line in lines(folder, file, start):
        if needle in line.data and line.complete:
            record = _parsed(line.data)
            if record is not None:
                yield At(name=file.name, line=line.number, record=record)


def last_records(directory: Path, count: int) -> tuple[list[Mapping[str, Json]], Place]:
    """Return the last records, and the place after them.

    Raises:
        OSError, UnsafeError: They cannot be read.
    """
    count = min(count, MAX_TAIL)
    found: list[Mapping[str, Json]] = []
    with opened(directory) as (folder, files):
        if not files:
            return [], Place()
        newest = files[-1]
        end, _ = _last(folder, newest, 0)
        for file in reversed(files):
            if len(found) >= count:
                break
            _, here = _last(folder, file, count - len(found))
            found = here + found
    return found, Place(name=newest.name, offset=end)


def records_since(directory: Path, place: Place) -> tuple[list[Mapping[str, Json]], Place]:
    """Return what has been written since, up to a bound, and the place after it.

    Raises:
        OSError, UnsafeError: It cannot be read.
    """
    found: list[Mapping[str, Json]] = []
    with opened(directory) as (folder, files):
        for file in files:
            if place.name is not None and file.name < place.name:
                continue
            offset = place.offset if file.name == place.name else 0
            for line in lines(folder, file, offset):
                if not line.complete or len(found) >= MAX_TAIL:
                    return found, Place(name=file.name, offset=offset)
                offset += line.size + 1
                record = _parsed(line.data)
                if record is not None:
                    found.append(record)
            place = Place(name=file.name, offset=offset)
    return found, place


def _last(folder: int, file: Found, count: int) -> tuple[int, list[Mapping[str, Json]]]:
    """Return where the last whole line of a file ends, and the last records of it."""
    want = CHUNK_BYTES
    while True:
        start = max(0, file.size - want)
        descriptor = open_file(folder, str(file.name), os.O_RDONLY)
        try:
            data = os.pread(descriptor, file.size - start, start)
        finally:
            os.close(descriptor)
        whole, _, rest = data.rpartition(b"\n")
        pieces = whole.split(b"\n")[0 if not start else 1 :]
        if not start or len(pieces) >= count:
            break
        want *= 4
    parsed = [_parsed(piece) for piece in pieces[max(0, len(pieces) - count) :]]
    return file.size - len(rest), [record for record in parsed if record is not None]


def _parsed(data: bytes) -> Mapping[str, Json] | None:
    try:
        record: Json = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


class _Gathered:
    """The pieces of a line, of which no more is kept than a line of ours has."""

    def __init__(self) -> None:
        self._size = 0
        self._data = bytearray()
        self._whole = hashlib.sha256()

    @property
    def empty(self) -> bool:
        return not self._size

    def add(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._data)
        if self._size <= MAX_LINE_BYTES < self._size + len(piece):
            # Only of a line too long to be kept has the digest to be made on the way.
            self._whole.update(self._data)
        self._size += len(piece)
        if self._size > MAX_LINE_BYTES:
            self._whole.update(piece)
        self._data += piece[:room]

    def line(self, number: int, *, complete: bool) -> RawLine:
        whole = "" if self._size <= MAX_LINE_BYTES else f"sha256:{self._whole.hexdigest()}"
        return RawLine(
            number=number,
            data=bytes(self._data),
            size=self._size,
            complete=complete,
            whole_digest=whole,
        )
