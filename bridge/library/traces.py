"""What the runs had read that changed memories or skills.

Owns one document for each of them. That a name is there, or is not, tells of every run that wrote
or removed something, also of those whose entries are gone. So whoever asks for anything of it has
read what stands here. All of it blocks, and belongs in threads.
"""

from __future__ import annotations

import json

from bridge.errors import LibraryError
from bridge.model import Json, Provenance
from bridge.store import Store, Transaction

MAX_NAMES = 200
"""Told apart, so that one can be forgotten; the others share an entry that stays."""

SKILLS = "skills"

_KIND = "read"


class Traces:
    """What was read by those that changed what has this name."""

    def __init__(self, store: Store, of: str = SKILLS) -> None:
        self._store = store
        self._of = of

    def all(self) -> Provenance | None:
        """Return all of it in one; None if nothing was written. A damaged one says the worst."""
        try:
            with self._store.reading() as kept:
                documents = _read(kept, self._of)
        except OSError:
            return Provenance(anything=True)
        found: Provenance | None = None
        for document in documents.values():
            one = Provenance.of(document)
            found = one if found is None or one is None else found.together(one)
        return found

    def add(self, name: str, provenance: Provenance | None) -> None:
        """Have what a run had read stand here. To be called before it changes an entry.

        Raises:
            LibraryError: It cannot be written; the entry must not be changed.
        """
        if not _tells(provenance):
            return
        try:
            with self._store.writing(durable=True) as kept:
                add_read(kept, self._of, name, provenance)
        except OSError as error:
            message = f"What was read cannot be written down: {error.strerror or error}."
            raise LibraryError(message) from None

    def forget(self, name: str) -> None:
        """Leave out what stands under a name: a person has seen that entry, or removed it.

        Raises:
            OSError: It cannot be written.
        """
        with self._store.reading() as kept:
            if name not in _read(kept, self._of):
                return
        with self._store.writing(durable=True) as kept:
            found = _read(kept, self._of)
            if name and found.pop(name, None) is not None:
                _write(kept, self._of, found)


def add_read(kept: Transaction, of: str, name: str, provenance: Provenance | None) -> None:
    """Have what a run had read stand beside what it changes in the same transaction."""
    if provenance is None or not _tells(provenance):
        return
    found = _read(kept, of)
    if name not in found and len(found) >= MAX_NAMES:
        name = ""
    before = Provenance.of(found.get(name))
    document = provenance.together(before).document()
    if before is None or before.document() != {**document, "run": before.run_id}:
        _write(kept, of, {**found, name: document})


def _tells(provenance: Provenance | None) -> bool:
    return provenance is not None and bool(
        provenance.labels or provenance.servers or provenance.anything
    )


def _write(kept: Transaction, of: str, found: dict[str, Json]) -> None:
    kept.put(_KIND, of, "", json.dumps(found).encode("ascii"))


def _read(kept: Transaction, of: str) -> dict[str, Json]:
    data = kept.get(_KIND, of, "")
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"": {"anything": True}}
