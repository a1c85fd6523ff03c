"""What programs remember between runs: JSON values under keys, each owner's own.

Owns the files: one for each key, named by a digest of it, in a directory named by a digest of its
owner. Each is replaced whole, and what it was stays for a while in a directory beside it. All of it
blocks, and belongs in threads.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bridge.errors import InvalidRequestError, LibraryError
from bridge.library.reading import read_regular
from bridge.library.traces import Traces
from bridge.model import MEBIBYTE, Json, Provenance
from bridge.saving import replace_file, turn

MAX_KEY_CHARS = 200
MAX_VALUE_BYTES = 64 * 1024
"""Of one value, as JSON."""

MAX_METADATA_BYTES = 4 * 1024
MAX_TOTAL_BYTES = 1 * MEBIBYTE
"""Of all values of an owner: what a list of them has to read."""

MAX_KEYS = 1000
"""Of an owner."""

MAX_OWNERS = 500
"""Over HTTP anybody can show a credential that nobody has shown before, and be another."""

VERSIONS = ".versions"
"""The directory, in an owner's, of what was replaced or deleted."""

MAX_VERSIONS_OF_KEY = 5
MAX_VERSIONS = 200
MAX_VERSIONS_BYTES = 2 * MEBIBYTE
"""Of one owner; the oldest go."""

_MAX_FILE_BYTES = 4 * MAX_VALUE_BYTES
_NAME_DIGITS = 40
_ENDING = ".json"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered under a key.

    Attributes:
        created, updated: As ISO 8601 has them, in UTC.
        revision: Another one after every change.
        provenance: What the run had read that saved it; None if nothing was written of that.
    """

    key: str
    value: Json
    metadata: Mapping[str, Json]
    created: str
    updated: str
    revision: str
    provenance: Provenance | None = None


class Memories:
    """What one owner's programs remember.

    Args:
        folder: Of all owners' memories.
        most_owners: How many there may be for this one to be a further; None for any number.
    """

    def __init__(self, folder: Path, owner: str, *, most_owners: int | None = None) -> None:
        self._most_owners = most_owners
        name = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._folder = folder / name
        # What the runs had read that changed something here; see there.
        self._traces = Traces(self._folder / ".read")

    def read_by_writers(self) -> Provenance | None:
        """Return what the runs had read that ever saved or deleted something; None if nothing."""
        return self._traces.all()

    def get(self, key: str) -> Memory | None:
        """Return what is remembered under a key.

        Raises:
            InvalidRequestError: It is no key.
            LibraryError: It cannot be read.
        """
        return self._read(self._path(key))

    def all(self) -> list[Memory | str]:
        """Return what is remembered, in the order of the keys; a file's name if it is damaged.

        Raises:
            LibraryError: They cannot be read.
        """
        found: list[Memory | str] = []
        for name, _ in self._files():
            try:
                memory = self._read(self._folder / name)
            except LibraryError:
                found.append(name)
                continue
            if memory is not None:
                found.append(memory)
        return sorted(found, key=lambda one: (isinstance(one, str), getattr(one, "key", one)))

    def put(
        self,
        key: str,
        value: Json,
        metadata: Mapping[str, Json] | None = None,
        *,
        unless_after: str | None = None,
        provenance: Provenance | None = None,
    ) -> Memory | None:
        """Remember a value; return it, or None if it has changed since the revision given.

        Args:
            metadata: None for what there was.
            unless_after: The revision that it has to be at; empty for one that is not there.
            provenance: What was read by whoever saves it.

        Raises:
            InvalidRequestError: It is too large, or there is no room.
            LibraryError: It cannot be written. What there was is as it was.
        """
        path = self._path(key)
        size = _size(value, "value", MAX_VALUE_BYTES)
        if metadata is not None:
            _size(metadata, "metadata", MAX_METADATA_BYTES)
        with self._turn(key):
            try:
                before = self._read(path)
            except LibraryError:
                # Saving anew is how a damaged one is mended.
                before = None
            if metadata is None:
                metadata = before.metadata if before else {}
                if metadata and before and before.provenance is not None:
                    # What stays of it is still from there.
                    provenance = (provenance or before.provenance).together(before.provenance)
            if unless_after is not None and unless_after != (before.revision if before else ""):
                return None
            self._check_room(path, size)
            now = _now()
            document: dict[str, Json] = {
                "key": key,
                "value": value,
                "metadata": dict(metadata),
                "created_at": before.created if before else now,
                "updated_at": now,
            }
            if provenance is not None:
                document["provenance"] = provenance.document()
            self._traces.add("", provenance)
            self._keep(path)
            # Every character that is none is escaped, so that any key can be written.
            data = json.dumps(document).encode("ascii")
            replace_file(path, data, durable=True)
        return _memory(data)

    def delete(self, key: str, *, provenance: Provenance | None = None) -> bool:
        """Forget a key; return whether there was something to forget.

        Args:
            provenance: What was read by whoever deletes it.

        Raises:
            LibraryError: It cannot be removed.
        """
        path = self._path(key)
        if not self._folder.is_dir():
            return False
        with self._turn(key):
            if not path.exists():
                return False
            self._traces.add("", provenance)
            self._keep(path)
            path.unlink()
        return True

    def _keep(self, path: Path) -> None:
        """Copy a file, if it is there, to where the last of what was replaced stays."""
        try:
            data = read_regular(path, _MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except ValueError:
            # Nothing that a bridge wrote.
            return
        folder = self._folder / VERSIONS
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "the directory of what was replaced is a link")
        replace_file(folder / f"{path.stem}-{time.time_ns():020}{_ENDING}", data)
        kept = [each for each in folder.iterdir() if each.name.endswith(_ENDING)]
        kept.sort(key=lambda each: each.stem.rpartition("-")[2], reverse=True)
        of_key = size = 0
        for number, each in enumerate(kept, start=1):
            size += each.lstat().st_size
            own = each.name.startswith(f"{path.stem}-")
            of_key += own
            many = number > MAX_VERSIONS or size > MAX_VERSIONS_BYTES
            if many or (own and of_key > MAX_VERSIONS_OF_KEY):
                each.unlink(missing_ok=True)

    @contextmanager
    def _turn(self, key: str) -> Iterator[None]:
        try:
            self._check_owner()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with turn(self._folder / ".lock"):
                yield
        except OSError as error:
            message = f"Memory {key!r:.80} cannot be written: {error.strerror or error}."
            raise LibraryError(message) from None

    def _check_owner(self) -> None:
        if self._most_owners is None or self._folder.is_dir():
            return
        try:
            owners = len(os.listdir(self._folder.parent))  # noqa: PTH208 - names are enough
        except FileNotFoundError:
            return
        if owners >= self._most_owners:
            message = f"{owners:,} callers have memories here, which is all there is room for."
            remedy = "The person who runs the bridge can remove some of its `memories`."
            raise LibraryError(message, remedy=remedy)

    def _check_room(self, path: Path, size: int) -> None:
        files = dict(self._files())
        others = sum(held for name, held in files.items() if name != path.name)
        if path.name not in files and len(files) >= MAX_KEYS:
            message = f"{MAX_KEYS:,} keys are remembered, which is all there is room for."
            raise InvalidRequestError(message, remedy="Forget some: delete_memory(key).")
        if others + size > MAX_TOTAL_BYTES:
            message = (
                f"All memories together would take {others + size:,} bytes; the limit is "
                f"{MAX_TOTAL_BYTES:,}."
            )
            raise InvalidRequestError(message, remedy="Forget some: delete_memory(key).")

    def _files(self) -> list[tuple[str, int]]:
        """Return the names of the files there are, with their sizes."""
        try:
            with os.scandir(self._folder) as entries:
                return [
                    (entry.name, entry.stat(follow_symlinks=False).st_size)
                    for entry in entries
                    if entry.name.endswith(_ENDING) and entry.is_file(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            message = f"Memories cannot be read: {error.strerror or error}."
            raise LibraryError(message) from None

    def _read(self, path: Path) -> Memory | None:
        try:
            return _memory(read_regular(path, _MAX_FILE_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            message = f"A memory, {path.name}, cannot be read: {error}."
            remedy = "Save it again under its key, or delete it."
            raise LibraryError(message, remedy=remedy) from None

    def _path(self, key: str) -> Path:
        if not key or len(key) > MAX_KEY_CHARS:
            message = f"A key has 1 to {MAX_KEY_CHARS} characters, not {len(key):,}."
            raise InvalidRequestError(message)
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f"{digest[:_NAME_DIGITS]}{_ENDING}"


def _memory(data: bytes) -> Memory:
    document = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("key"), str):
        message = "it is not what a bridge writes"
        raise ValueError(message)
    metadata = document.get("metadata")
    return Memory(
        key=document["key"],
        value=document.get("value"),
        metadata=metadata if isinstance(metadata, dict) else {},
        created=str(document.get("created_at", "")),
        updated=str(document.get("updated_at", "")),
        revision=hashlib.sha256(data).hexdigest()[:_NAME_DIGITS],
        provenance=Provenance.of(document.get("provenance")),
    )


def _size(value: Json | Mapping[str, Json], what: str, most: int) -> int:
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=True))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"The {what} is no JSON: {error}."
        raise InvalidRequestError(message) from None
    if size > most:
        message = f"The {what} takes {size:,} bytes as JSON; the limit is {most:,}."
        raise InvalidRequestError(message, remedy="Keep less, or in several keys.")
    return size


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
