"""Documents in the store: memories, and what the runs that changed memories or skills had read.

A memory's document is named by its key's digest, under its owner's. Whether an entry exists depends
on each run that ever saved or removed one. So a run that asks for any entry counts as having read
what all of these had read. Blocks: call it in threads.
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
from bridge.model import MEBIBYTE, Json, Provenance
from bridge.store import Store, Transaction, owner_digest

MAX_NAMES = 200  # Entries of their own, which can be removed: programs make names without end.

SKILLS = "skills"

_READ = "read"


def read_by_writers(store: Store, of: str) -> Provenance | None:
    """Return all of it as one; None if there is none. A damaged record counts as the worst."""
    try:
        documents = _decode(store.documents(_READ, [""], of).get(""))
    except OSError:
        return Provenance(anything=True)
    found: Provenance | None = None
    for document in documents.values():
        one = Provenance.of(document)
        found = one if found is None or one is None else found.together(one)
    return found


def add_read(kept: Transaction, of: str, name: str, provenance: Provenance | None) -> None:
    if provenance is None or not is_known_to_flow_rules(provenance):
        return
    found = _decode(kept.get(_READ, of, ""))
    if name not in found and len(found) >= MAX_NAMES:
        name = ""
    before = Provenance.of(found.get(name))
    document = provenance.together(before).document()
    if before is None or before.document() != {**document, "run": before.run_id}:
        _write(kept, of, {**found, name: document})


def forget_read(kept: Transaction, of: str, name: str) -> None:
    """Remove an entry's record: a person has seen the entry, or removed it."""
    found = _decode(kept.get(_READ, of, ""))
    if name and found.pop(name, None) is not None:
        _write(kept, of, found)


def is_known_to_flow_rules(provenance: Provenance | None) -> bool:
    return provenance is not None and bool(
        provenance.labels or provenance.servers or provenance.anything
    )


def _write(kept: Transaction, of: str, found: dict[str, Json]) -> None:
    kept.put(_READ, of, "", json.dumps(found).encode("ascii"))


def _decode(data: bytes | None) -> dict[str, Json]:
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"": {"anything": True}}


# Programs may save without end.
MAX_VALUE_BYTES = 64 * 1024  # Of one value, as JSON.
MAX_TOTAL_BYTES = 1 * MEBIBYTE  # Of all values of an owner: what a list of them has to read.
MAX_OWNERS = 500  # Most owners: over HTTP anybody can use a new credential, and be a new owner.
VERSIONS = "memory-old"  # Documents of what was replaced or deleted.

_KIND = "memory"
_NAME_DIGITS = 40


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered under a key.

    Attributes:
        created, updated: ISO 8601, in UTC.
        revision: Differs after each change.
        provenance: What the run that saved it had read; None if that was not recorded.
    """

    key: str
    value: Json
    metadata: Mapping[str, Json]
    created: str
    updated: str
    revision: str
    provenance: Provenance | None = None


class Memories:
    """What one owner's programs remember, if it is one of at most `most_owners`."""

    def __init__(self, store: Store, owner: str, *, most_owners: int | None = None) -> None:
        self._store = store
        self._most_owners = most_owners
        self._owner = owner_digest(owner)
        # What the runs had read that changed something here; see there.
        self._writers = f"memories/{self._owner}"

    def read_by_writers(self) -> Provenance | None:
        """Return what all runs that saved or deleted something had read."""
        return read_by_writers(self._store, self._writers)

    def get(self, key: str) -> Memory | None:
        name = _name(key)
        with _told(), self._store.reading() as kept:
            return _read(kept, self._owner, name)

    def all(self) -> list[Memory | str]:
        """Return all memories in the order of the keys; for a damaged one its document's name."""
        found: list[Memory | str] = []
        with _told(), self._store.reading() as kept:
            entries = kept.all(_KIND, self._owner)
        for name, data in entries:
            try:
                found.append(_memory(data))
            except (ValueError, RecursionError):
                found.append(name)
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
            metadata: None keeps the previous.
            unless_after: The expected revision; empty for a new key.
        """
        name = _name(key)
        size = _size(value, "value", MAX_VALUE_BYTES)
        if metadata is not None:
            _size(metadata, "metadata", 4 * 1024)
        with _told(key), self._store.writing(durable=True) as kept:
            try:
                before = _read(kept, self._owner, name)
            except LibraryError:
                # Saving again is how a damaged one is fixed.
                before = None
            if metadata is None:
                metadata = before.metadata if before else {}
                if metadata and before and before.provenance is not None:
                    # What stays of it is still from there.
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
            # Every character that is none is escaped, so that any key can be written.
            data = json.dumps(document).encode("ascii")
            kept.put(_KIND, self._owner, name, data)
        return _memory(data)

    def delete(self, key: str, *, provenance: Provenance | None = None) -> bool:
        name = _name(key)
        with _told(key), self._store.writing(durable=True) as kept:
            if kept.get(_KIND, self._owner, name) is None:
                return False
            add_read(kept, self._writers, "", provenance)
            self._keep(kept, name)
            return kept.delete(_KIND, self._owner, name)

    def _keep(self, kept: Transaction, name: str) -> None:
        """Copy a memory, if there is one, to the replaced ones, of which the last stay."""
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
            # A program can replace values without end.
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
            raise InvalidRequestError(message, remedy="Forget some: delete_memory(key).")
        if self._most_owners is None or sizes:
            return
        owners = kept.owners(_KIND) | kept.owners(VERSIONS)
        if self._owner not in owners and len(owners) >= self._most_owners:
            message = f"{len(owners):,} callers have memories here, which is all there is room for."
            remedy = "The person who runs the bridge can have some of them forgotten."
            raise LibraryError(message, remedy=remedy)


@contextmanager
def _told(key: str = "") -> Iterator[None]:
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
        raise ValueError("it is not what a bridge writes")
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
        raise InvalidRequestError(f"The {what} is no JSON: {error}.") from None
    if size > most:
        message = f"The {what} takes {size:,} bytes as JSON; the limit is {most:,}."
        raise InvalidRequestError(message, remedy="Keep less, or in several keys.")
    return size
