"""Documents in the store: memories, and the provenance of runs that changed memories or skills.

Whether an entry exists depends on each run that ever saved or removed one. A run that asks for any
entry therefore gets the provenance of all these runs. Blocks: call it in threads.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.errors import InvalidRequestError, LibraryError
from bridge.model import MEBIBYTE, Json, Provenance, owner_digest
from bridge.store import Store, Transaction

MAX_NAMES = 200  # Entries with a record of their own; a program can use any number of names.

SKILLS = "skills"

_READ = "read"


def read_by_writers(store: Store, of: str) -> Provenance | None:
    """Return the joint provenance; None without records. A damaged record means "anything"."""
    try:
        documents = _decode(store.documents(_READ, [""], of).get(""))
    except OSError:
        return Provenance(anything=True)
    joint: Provenance | None = None
    for document in documents.values():
        provenance = Provenance.of(document)
        joint = provenance if joint is None or provenance is None else joint.together(provenance)
    return joint


def add_read(kept: Transaction, of: str, name: str, provenance: Provenance | None) -> None:
    if provenance is None or not is_known_to_flow_rules(provenance):
        return
    records = _decode(kept.get(_READ, of, ""))
    if name not in records and len(records) >= MAX_NAMES:
        name = ""
    before = Provenance.of(records.get(name))
    document = provenance.together(before).document()
    if before is None or before.document() != {**document, "run": before.run_id}:
        _write(kept, of, {**records, name: document})


def forget_read(kept: Transaction, of: str, name: str) -> None:
    """Remove an entry's record after a person approved or removed the entry."""
    records = _decode(kept.get(_READ, of, ""))
    if name and records.pop(name, None) is not None:
        _write(kept, of, records)


def is_known_to_flow_rules(provenance: Provenance | None) -> bool:
    return provenance is not None and bool(
        provenance.labels or provenance.servers or provenance.anything
    )


def _write(kept: Transaction, of: str, records: dict[str, Json]) -> None:
    kept.put(_READ, of, "", json.dumps(records).encode("ascii"))


def _decode(data: bytes | None) -> dict[str, Json]:
    if data is None:
        return {}
    try:
        records = json.loads(data)
    except (ValueError, RecursionError):
        records = None
    return records if isinstance(records, dict) else {"": {"anything": True}}


# Programs can save any number of values.
MAX_VALUE_BYTES = 64 * 1024  # One value as JSON, or one skill's source, which is parsed.
MAX_TOTAL_BYTES = 1 * MEBIBYTE  # All values of an owner: `all` reads them at once.
MAX_OWNERS = 500  # Over HTTP, each new credential is a new owner.
VERSIONS = "memory-old"  # The kind of replaced and deleted memories.

_KIND = "memory"
_NAME_DIGITS = 40


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A value that a program saved under a key. Times are in ISO 8601, in UTC."""

    key: str
    value: Json
    metadata: Mapping[str, Json]
    created: str
    updated: str
    revision: str  # Changes with each save.
    provenance: Provenance | None = None  # None if that of the saving run was not recorded.


class Memories:
    """The memories of one owner. Only `most_owners` owners may have any."""

    def __init__(self, store: Store, owner: str, *, most_owners: int | None = None) -> None:
        self._store = store
        self.run = store.run
        self._most_owners = most_owners
        self._owner = owner_digest(owner)
        self._writers = f"memories/{self._owner}"

    def read_by_writers(self) -> Provenance | None:
        return read_by_writers(self._store, self._writers)

    def get(self, key: str) -> Memory | None:
        name = _name(key)
        with _translate_errors(), self._store.reading() as kept:
            return _read(kept, self._owner, name)

    def all(self) -> list[Memory | str]:
        """Return all memories by key; for a damaged memory, the name of its document."""
        memories: list[Memory | str] = []
        with _translate_errors(), self._store.reading() as kept:
            entries = kept.all(_KIND, self._owner)
        for name, data in entries:
            try:
                memories.append(_memory(data))
            except (ValueError, RecursionError):
                memories.append(name)
        return sorted(
            memories, key=lambda memory: (isinstance(memory, str), getattr(memory, "key", memory))
        )

    def put(
        self,
        key: str,
        value: Json,
        metadata: Mapping[str, Json] | None = None,
        *,
        unless_after: str | None = None,
        provenance: Provenance | None = None,
    ) -> Memory | None:
        """Save a value; return the memory, or None if its revision is not the expected one.

        The expected revision `unless_after` is empty for a new key, and None for any.
        """
        name = _name(key)
        size = _size(value, "value", MAX_VALUE_BYTES)
        if metadata is not None:
            _size(metadata, "metadata", 4 * 1024)
        with _translate_errors(key), self._store.writing(durable=True) as kept:
            try:
                before = _read(kept, self._owner, name)
            except LibraryError:
                # A save replaces a damaged memory.
                before = None
            if metadata is None:
                metadata = before.metadata if before else {}
                if metadata and before and before.provenance is not None:
                    # The metadata stays, so its provenance does too.
                    provenance = (provenance or before.provenance).together(before.provenance)
            if unless_after is not None and unless_after != (before.revision if before else ""):
                return None
            self._check_room(kept, name, size)
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            document: dict[str, Json] = {
                "key": key,
                "value": value,
                "metadata": dict(metadata),
                "created_at": before.created if before else now,
                "updated_at": now,
                **({} if provenance is None else {"provenance": provenance.document()}),
            }
            add_read(kept, self._writers, "", provenance)
            self._keep(kept, name)
            # ASCII escapes lone surrogates, which UTF-8 cannot encode.
            data = json.dumps(document).encode("ascii")
            kept.put(_KIND, self._owner, name, data)
        return _memory(data)

    def delete(self, key: str, *, provenance: Provenance | None = None) -> bool:
        name = _name(key)
        with _translate_errors(key), self._store.writing(durable=True) as kept:
            if kept.get(_KIND, self._owner, name) is None:
                return False
            add_read(kept, self._writers, "", provenance)
            self._keep(kept, name)
            return kept.delete(_KIND, self._owner, name)

    def _keep(self, kept: Transaction, name: str) -> None:
        """Copy the current memory to its old versions, and remove the oldest of these."""
        data = kept.get(_KIND, self._owner, name)
        if data is None:
            return
        kept.put(VERSIONS, self._owner, f"{name}-{time.time_ns():020}", data)
        versions = kept.listed(VERSIONS, self._owner)
        versions.sort(key=lambda one: one.name.rpartition("-")[2], reverse=True)
        of_key = size = 0
        for each in versions:
            size += each.size
            own = each.name.startswith(f"{name}-")
            of_key += own
            # A program can replace a value any number of times.
            if size > 2 * MEBIBYTE or (own and of_key > 5):
                kept.delete(VERSIONS, self._owner, each.name)

    def _check_room(self, kept: Transaction, name: str, size: int) -> None:
        sizes = {one.name: one.size for one in kept.listed(_KIND, self._owner)}
        others = sum(held for other, held in sizes.items() if other != name)
        if others + size > MAX_TOTAL_BYTES:
            message = (
                f"All memories together would take {others + size:,} bytes; the limit is "
                f"{MAX_TOTAL_BYTES:,}."
            )
            raise InvalidRequestError(message, remedy="Delete some with delete_memory(key).")
        if self._most_owners is None or sizes:
            return
        owners = kept.owners(_KIND) | kept.owners(VERSIONS)
        if self._owner not in owners and len(owners) >= self._most_owners:
            message = f"{len(owners):,} callers have memories here, which is the limit."
            remedy = "The person who runs the bridge can delete some of them."
            raise LibraryError(message, remedy=remedy)


@contextmanager
def _translate_errors(key: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"Memory {key!r:.80} cannot be written" if key else "Memories cannot be read"
        raise LibraryError(f"{what}: {error.strerror or error}.") from None


def _read(kept: Transaction, owner: str, name: str) -> Memory | None:
    data = kept.get(_KIND, owner, name)
    try:
        return None if data is None else _memory(data)
    except (ValueError, RecursionError) as error:
        message = f"A memory, {name}, cannot be read: {error}."
        raise LibraryError(message, remedy="Save it again under its key, or delete it.") from None


def _name(key: str) -> str:
    if not 0 < len(key) <= 200:
        raise InvalidRequestError(f"A key has 1 to 200 characters, not {len(key):,}.")
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_DIGITS]


def _memory(data: bytes) -> Memory:
    document = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("key"), str):
        raise ValueError("no bridge wrote it")
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
        raise InvalidRequestError(f"The {what} is not JSON: {error}.") from None
    if size > most:
        message = f"The {what} takes {size:,} bytes as JSON; the limit is {most:,}."
        raise InvalidRequestError(message, remedy="Save less, or use several keys.")
    return size
