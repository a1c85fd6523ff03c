"""Stores the content of clients' files before each change, and the servers that moved."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from bridge.atomic_files import exclusive_lock, replace_file
from bridge.client_configs.writers import Target
from bridge.discovery.documents import MAX_FILE_BYTES, MalformedError
from bridge.discovery.files import ABSENT, read_regular
from bridge.discovery.moved import MANIFEST, MovedFile, manifest_text, read_manifest
from bridge.errors import UsageError
from bridge.private_files import make_directory


@dataclass(frozen=True, kw_only=True)
class MoveRecord:
    """One change of one file, recorded before the change.

    Attributes:
        id: Assigned by the journal; newer ids sort later.
        before: The content before; None for no file.
        after_sha256: The digest of the content after; empty for no file.
        made_directories: Directories created for the file, the outermost first.
    """

    id: str = ""
    path: str
    action: Literal["install", "move"]
    name: str
    before: bytes | None
    after_sha256: str
    made_directories: tuple[str, ...] = ()

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
        raw = read_regular(file.store, limit=MAX_FILE_BYTES)
        if raw == ABSENT:
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
        files = (*others, file) if file.entries else others
        replace_file(self.directory / MANIFEST, manifest_text(files), durable=True)
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
