"""Records changes of clients' files, with the content before each, so that they can be undone."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from bridge.atomic_files import exclusive_lock, replace_file
from bridge.private_files import make_directory

KEPT_PER_FILE = 20

TURN_SECONDS = 30.0  # For another bridge to finish one file, on a disk that is busy.


@dataclass(frozen=True, kw_only=True)
class Record:
    """One change of one file, written before the change is made.

    Attributes:
        id: Given by the journal; newer ones sort later.
        path: The file, absolute, as it was named.
        name: The bridge's entry.
        before: The content before; None is no file.
        after_sha256: The digest of the content after; empty is no file.
        made_directories: Directories made for the file, the outermost first.
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
def turn_in(directory: Path) -> Iterator[None]:
    """Keep other bridges from changing what is in a directory of theirs. Blocks.

    Raises:
        OSError: The directory cannot be made, or another bridge does not end.
    """
    make_directory(directory)
    # A directory of settings is a link in many homes.
    with exclusive_lock(directory.resolve(), seconds=TURN_SECONDS):
        yield


class Journal:
    """The records in a directory of the bridge's, readable by this user alone."""

    def __init__(self, directory: Path) -> None:
        """Take the state directory's `clients`."""
        self._directory = directory

    def turn(self) -> AbstractContextManager[None]:
        """Keep other bridges from changing clients' files, and what is kept of them. Blocks."""
        return turn_in(self._directory)

    def add(self, record: Record) -> Record:
        """Keep a record, durably, and drop the file's oldest; return it with its id.

        Raises:
            OSError: It cannot be written; the change must not be made then.
        """
        make_directory(self._directory)
        file = digest(record.path.encode())[:16]
        record = replace(record, id=f"{time.time_ns():020d}-{file}")
        fields = {**asdict(record), "before": record.before is not None}
        if record.before is not None:
            replace_file(self._content(record.id), record.before, durable=True)
        replace_file(self._head(record.id), json.dumps(fields).encode(), durable=True)
        kept = sorted(self._directory.glob(f"*-{file}.json"))
        for old in kept[:-KEPT_PER_FILE]:
            self.drop(old.stem)
        return record

    def records(self) -> tuple[Record, ...]:
        """Return all records, the oldest first; damaged ones are left out."""
        ids = sorted(path.stem for path in self._directory.glob("*.json"))
        return tuple(record for record in map(self._load, ids) if record)

    def drop(self, id: str) -> None:
        for path in (self._head(id), self._content(id)):
            with suppress(FileNotFoundError):
                path.unlink()

    def _head(self, id: str) -> Path:
        return self._directory / f"{id}.json"

    def _content(self, id: str) -> Path:
        return self._directory / f"{id}.before"

    def _load(self, id: str) -> Record | None:
        try:
            fields = json.loads(self._head(id).read_bytes())
            before = self._content(id).read_bytes() if fields["before"] else None
            made = tuple(fields["made_directories"])
            return Record(**{**fields, "made_directories": made, "before": before})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def digest(content: bytes | None) -> str:
    """Return a content's SHA-256 in hex; empty for no file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()
