"""Taking wheels apart, whoever made them.

Owns what may be in an archive, and what becomes of it: plain files and directories of fixed modes
below one directory, nothing executed, nothing that an interpreter would run by itself. Wheels come
from strangers, so their names, sizes and kinds are claims; every bound here is counted, not read.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import PackageRefusedError

MAX_ENTRIES = 50_000
"""Files of all packages of a run: the largest sets have half of that."""

MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
"""Of an archive's table of contents, which is read whole before anything else."""

MAX_NAME = 512
MAX_DEPTH = 32

_PIECE = 256 * 1024

_END = b"PK\x05\x06"
_END_BYTES = 22
_LONG_END = b"PK\x06\x07"
_LONG_END_BYTES = 20
_LONGEST_COMMENT = 65535

_SCHEMES = ("purelib", "platlib")
"""Of what a wheel has beside its modules: those that are modules too. Scripts, headers and data
have no place in a sandbox."""

_RUN_BY_ITSELF = re.compile(r"[^/]*\.pth|(sitecustomize|usercustomize)([./].*)?", re.IGNORECASE)
"""What an interpreter with `site` would run at its start. The guest's has none; left out all the
same, since a program may start another."""


@dataclass(kw_only=True)
class Room:
    """What is left of the bounds on one set of packages."""

    bytes: int
    entries: int = MAX_ENTRIES
    made: set[Path] = field(default_factory=set)

    def count(self) -> None:
        """Count one more file or directory."""
        self.entries -= 1
        if self.entries < 0:
            message = f"the packages have more than {MAX_ENTRIES:,} files and directories"
            raise _BadWheelError(message)


class _BadWheelError(Exception):
    """Why a wheel is refused."""


def unpack(wheels: Iterable[tuple[str, Path]], into: Path, max_bytes: int) -> None:
    """Unpack wheels into a directory of our own, in order; a file that is there already stays.

    Blocks; for threads.

    Args:
        wheels: File name and archive.

    Raises:
        PackageRefusedError: One is not what a wheel may be.
        OSError: It cannot be written.
    """
    room = Room(bytes=max_bytes)
    for name, path in wheels:
        try:
            _unpack(path, into, room)
        except (_BadWheelError, zipfile.BadZipFile, zlib.error, struct.error, EOFError) as error:
            why = str(error) or type(error).__name__
            message = f"The wheel {name:.100} is refused: {why:.300}."
            raise PackageRefusedError(message, remedy="Ask for another version.") from None
        except (NotImplementedError, RuntimeError, UnicodeError, ValueError) as error:
            # What `zipfile` makes of an archive's other oddities.
            message = f"The wheel {name:.100} is refused: {error!s:.300}."
            raise PackageRefusedError(message, remedy="Ask for another version.") from None


def _unpack(path: Path, into: Path, room: Room) -> None:
    _look_at_end(path)
    with zipfile.ZipFile(path) as archive:
        seen: set[str] = set()
        for entry in archive.infolist():
            room.count()
            parts = _parts(entry)
            if entry.is_dir():
                continue
            if entry.filename in seen:
                message = f"it has {entry.filename!r:.100} twice"
                raise _BadWheelError(message)
            seen.add(entry.filename)
            place = _placed(parts)
            if place:
                _write(archive, entry, into, place, room)


def _look_at_end(path: Path) -> None:
    """Bound an archive's table of contents before `zipfile` reads it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES - _LONGEST_COMMENT - _LONG_END_BYTES))
        tail = file.read()
    at = len(tail) - _END_BYTES
    if at < 0 or not (tail[at : at + 4] == _END and tail[-2:] == b"\0\0"):
        at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        message = "it is no zip archive"
        raise _BadWheelError(message)
    count, length = struct.unpack("<HI", tail[at + 10 : at + 16])
    # Of archives beyond 4 GiB or 65,535 files; there are limits far below that.
    if tail[max(0, at - _LONG_END_BYTES) : at][:4] == _LONG_END or count == 0xFFFF:
        message = "it is an archive of the largest kind"
        raise _BadWheelError(message)
    if count > MAX_ENTRIES or length > MAX_DIRECTORY_BYTES:
        message = f"it has {count:,} files"
        raise _BadWheelError(message)


def _parts(entry: zipfile.ZipInfo) -> tuple[str, ...]:
    """Return a name's parts, if it can be written below a directory and nowhere else."""
    name = entry.filename
    shown = f"{name!r:.100}"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "neither a file nor a directory"
        message = f"{shown} is {what}"
        raise _BadWheelError(message)
    if entry.flag_bits & 0x1:
        message = f"{shown} is encrypted"
        raise _BadWheelError(message)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{shown} is compressed in a way that wheels are not"
        raise _BadWheelError(message)
    # `zipfile` cuts names at a NUL; what it was shown as before is kept in `orig_filename`.
    whole = entry.orig_filename
    parts = tuple(name.removesuffix("/").split("/"))
    bad = len(name.encode("utf-8", "surrogatepass")) > MAX_NAME or len(parts) > MAX_DEPTH
    if (
        bad
        or "\\" in whole
        or any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in whole)
        or any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
    ):
        message = f"{shown} is no name of a file in a wheel"
        raise _BadWheelError(message)
    return parts


def _placed(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return where a file of a wheel goes; empty for nowhere."""
    if parts[0].endswith(".data") and len(parts) > 1:
        if parts[1] not in _SCHEMES:
            return ()
        parts = parts[2:]
    if not parts or _RUN_BY_ITSELF.fullmatch("/".join(parts)):
        return ()
    return parts


def _write(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: Path, parts: tuple[str, ...], room: Room
) -> None:
    directory = into.joinpath(*parts[:-1])
    place = directory / parts[-1]
    executable = bool((entry.external_attr >> 16) & 0o111)
    try:
        _make(into, parts[:-1], room)
        if place.is_dir():
            raise FileExistsError
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(place, flags, 0o755 if executable else 0o644)
    except FileExistsError:
        if place.is_file() and directory.is_dir():
            # Packages share names such as `tests/__init__.py`; who came first keeps its own.
            return
        message = f"{entry.filename!r:.100} is a file and a directory"
        raise _BadWheelError(message) from None
    except NotADirectoryError:
        message = f"{entry.filename!r:.100} is below a file"
        raise _BadWheelError(message) from None
    with os.fdopen(descriptor, "wb") as file, archive.open(entry) as stream:
        # Whatever the process's mask makes of it.
        os.fchmod(file.fileno(), 0o755 if executable else 0o644)
        while data := stream.read(_PIECE):
            room.bytes -= len(data)
            if room.bytes < 0:
                message = "unpacked, the packages are larger than a run's may be (`max_bytes`)"
                raise _BadWheelError(message)
            file.write(data)


def _make(into: Path, parts: tuple[str, ...], room: Room) -> None:
    directory = into
    for part in parts:
        directory = directory / part
        if directory not in room.made:
            room.count()
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
            room.made.add(directory)
