"""What the runs had read that changed one store: its memories, or its skills.

Owns a file beside the store. That a name is there, or is not, tells of every run that wrote or
removed something, also of those whose entries are gone. So whoever asks the store anything has read
what stands here. All of it blocks, and belongs in threads.
"""

from __future__ import annotations

import json
from pathlib import Path

from bridge.errors import LibraryError
from bridge.library.reading import read_regular
from bridge.model import Json, Provenance
from bridge.saving import replace_file, turn

MAX_NAMES = 200
"""Told apart, so that one can be forgotten; the others share an entry that stays."""

MAX_BYTES = 2 * 1024 * 1024


class Traces:
    """The file, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> Provenance | None:
        """Return all of it in one; None if nothing was written. A damaged file says the worst."""
        found: Provenance | None = None
        for document in self._read().values():
            one = Provenance.of(document)
            found = one if found is None or one is None else found.together(one)
        return found

    def add(self, name: str, provenance: Provenance | None) -> None:
        """Have what a run had read stand here. To be called before it changes an entry.

        Raises:
            LibraryError: It cannot be written; the entry must not be changed.
        """
        if provenance is None or not (
            provenance.labels or provenance.servers or provenance.anything
        ):
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with turn(self._path.with_name(f"{self._path.name}.lock")):
                found = self._read()
                if name not in found and len(found) >= MAX_NAMES:
                    name = ""
                before = Provenance.of(found.get(name))
                document = provenance.together(before).document()
                if before is None or before.document() != {**document, "run": before.run_id}:
                    self._write({**found, name: document})
        except OSError as error:
            message = f"What was read cannot be written down: {error.strerror or error}."
            raise LibraryError(message) from None

    def forget(self, name: str) -> None:
        """Leave out what stands under a name: a person has seen that entry, or removed it.

        Raises:
            OSError: It cannot be written.
        """
        if not self._path.exists():
            return
        with turn(self._path.with_name(f"{self._path.name}.lock")):
            found = self._read()
            if name and found.pop(name, None) is not None:
                self._write(found)

    def _write(self, found: dict[str, Json]) -> None:
        replace_file(self._path, json.dumps(found).encode("ascii"), durable=True)

    def _read(self) -> dict[str, Json]:
        try:
            found = json.loads(read_regular(self._path, MAX_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {"": {"anything": True}}
