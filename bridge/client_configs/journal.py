"""Replaces clients' files, and stores what undoes a change: old content and moved servers.

A file is replaced by its edited content whole or not at all. The client may write the file at any
time and takes no lock. So the file is compared with the content read before, immediately before the
replacement. A race of one system call remains.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from bridge.atomic_files import exclusive_lock, read_regular, replace_file
from bridge.client_configs.writers import Target
from bridge.discovery import files
from bridge.discovery.documents import MAX_FILE_BYTES, MalformedError
from bridge.discovery.moved import MANIFEST, MovedFile, manifest_text, read_manifest
from bridge.errors import BridgeError, UneditableError, UsageError
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


@dataclass(frozen=True, kw_only=True)
class MoveRecord:
    """One change of one file, recorded before the change."""

    id: str = ""  # Assigned by the journal; newer ids sort later.
    path: str
    action: Literal["install", "move"]
    name: str
    before: bytes | None
    after_sha256: str  # The digest of the content after; empty for no file.
    made_directories: tuple[str, ...] = ()  # Directories created for the file, the outermost first.

    def describes(self, present: bytes | None) -> bool:
        return digest(present) == self.after_sha256


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a state directory against other bridges. Blocks for up to 30 s."""
    make_directory(directory)
    # In many home directories the settings directory is a link.
    with exclusive_lock(directory.resolve(), seconds=30):
        yield


@dataclass(frozen=True)
class Journal:
    """The records of changes, in a directory that only this user can read."""

    directory: Path

    def add(self, record: MoveRecord) -> MoveRecord:
        """Write a record durably, or raise an `OSError`; return it with its id."""
        make_directory(self.directory)
        record = replace(record, id=f"{time.time_ns():020d}")
        before = None if record.before is None else base64.b64encode(record.before).decode()
        text = json.dumps({**asdict(record), "before": before})
        replace_file(self.directory / f"{record.id}.json", text.encode(), durable=True)
        return record

    def records(self, path: Path | None = None) -> list[MoveRecord]:
        """Return a file's records, or all, the oldest first; skip damaged ones."""
        loaded = filter(None, map(_load, sorted(self.directory.glob("*.json"))))
        return [record for record in loaded if path in (None, Path(record.path))]

    def installs(self, path: Path, name: str) -> list[MoveRecord]:
        key = ("install", name)
        return [each for each in self.records(path) if (each.action, each.name) == key]

    def install_of(self, path: Path, name: str, present: bytes | None) -> MoveRecord | None:
        """Return the record of the install that produced a file's present content."""
        newest_first = reversed(self.installs(path, name))
        return next((record for record in newest_first if record.describes(present)), None)

    def drop(self, id: str) -> None:
        (self.directory / f"{id}.json").unlink(missing_ok=True)


@dataclass(frozen=True)
class MovedServers:
    """The directory of servers that moved behind the bridge, with its manifest."""

    directory: Path

    def files(self) -> tuple[MovedFile, ...]:
        """Return the manifest's rows; raise a `UsageError` if it cannot be read."""
        try:
            return read_manifest(self.directory)
        except MalformedError as error:
            path = self.directory / MANIFEST
            remedy = "Repair the file or move it away."
            raise UsageError(f"{path}: {error}.", remedy=remedy) from None

    def file_of(self, target: Target) -> MovedFile:
        """Return the manifest's row of a file, or a new row without entries."""
        row = next((each for each in self.files() if each.original == target.path), None)
        if row is not None:
            return row
        name = digest(str(target.path).encode("utf-8", "surrogateescape"))[:12]
        suffix = target.path.suffix or ".json"
        return MovedFile(
            original=target.path,
            store=self.directory / f"{target.location.id}-{name}{suffix}",
            client=target.location.id,
            entries=(),
        )

    def text(self, file: MovedFile) -> bytes:
        """Return the content of the file that holds the moved servers; empty if it is new."""
        raw = files.read_regular(file.store, limit=MAX_FILE_BYTES)
        if raw == files.ABSENT:
            return b""
        if isinstance(raw, str):
            raise UsageError(f"{file.store}: {raw}.", remedy="This file holds the moved servers.")
        return raw

    def write(self, file: MovedFile, text: bytes) -> None:
        """Write a file's moved entries durably; the manifest always names existing files."""
        make_directory(self.directory)
        others = tuple(each for each in self.files() if each.original != file.original)
        if file.entries:
            replace_file(file.store, text, durable=True)
        rows = (*others, file) if file.entries else others
        replace_file(self.directory / MANIFEST, manifest_text(rows), durable=True)
        if not file.entries:
            file.store.unlink(missing_ok=True)


def _load(path: Path) -> MoveRecord | None:
    try:
        fields = json.loads(path.read_bytes())
        before = None if fields["before"] is None else base64.b64decode(fields["before"])
        made = tuple(fields["made_directories"])
        return MoveRecord(**{**fields, "made_directories": made, "before": before})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def digest(content: bytes | None) -> str:
    """Return the SHA-256 of content in hex; empty for no file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()
