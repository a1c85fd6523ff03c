"""Records changes of clients' files, with the content before each, so that they can be undone."""

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
from bridge.private_files import make_directory


@dataclass(frozen=True, kw_only=True)
class MoveRecord:
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
    with exclusive_lock(directory.resolve(), seconds=30):
        yield


class Journal:
    """The records in a directory of the bridge's, readable by this user alone."""

    def __init__(self, directory: Path) -> None:
        """Take the state directory's `clients`."""
        self.directory = directory

    def add(self, record: MoveRecord) -> MoveRecord:
        """Keep a record, durably; return it with its id.

        Raises:
            OSError: It cannot be written; the change must not be made then.
        """
        make_directory(self.directory)
        record = replace(record, id=f"{time.time_ns():020d}")
        before = None if record.before is None else base64.b64encode(record.before).decode()
        text = json.dumps({**asdict(record), "before": before})
        replace_file(self._file(record.id), text.encode(), durable=True)
        return record

    def records(self) -> tuple[MoveRecord, ...]:
        """Return all records, the oldest first; damaged ones are left out."""
        found = map(_load, sorted(self.directory.glob("*.json")))
        return tuple(record for record in found if record)

    def drop(self, id: str) -> None:
        self._file(id).unlink(missing_ok=True)

    def _file(self, id: str) -> Path:
        return self.directory / f"{id}.json"


def _load(path: Path) -> MoveRecord | None:
    try:
        fields = json.loads(path.read_bytes())
        before = None if fields["before"] is None else base64.b64decode(fields["before"])
        made = tuple(fields["made_directories"])
        return MoveRecord(**{**fields, "made_directories": made, "before": before})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def digest(content: bytes | None) -> str:
    """Return a content's SHA-256 in hex; empty for no file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()
