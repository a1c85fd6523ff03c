"""What the runs that changed memories or skills had read. Blocks: call it in threads.

That an entry exists depends on each run that ever saved or removed something. So a run that asks
for any entry counts as having read what these documents hold.
"""

from __future__ import annotations

import json

from bridge.model import Json, Provenance
from bridge.store import Store, Transaction

MAX_NAMES = 200  # Entries of their own, which can be removed: programs make names without end.

SKILLS = "skills"

_KIND = "read"


def read_by_writers(store: Store, of: str) -> Provenance | None:
    """Return all of it as one; None if there is none. A damaged record counts as the worst."""
    try:
        documents = _decoded(store.documents(_KIND, [""], of).get(""))
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
    found = _read(kept, of)
    if name not in found and len(found) >= MAX_NAMES:
        name = ""
    before = Provenance.of(found.get(name))
    document = provenance.together(before).document()
    if before is None or before.document() != {**document, "run": before.run_id}:
        _write(kept, of, {**found, name: document})


def forget_read(kept: Transaction, of: str, name: str) -> None:
    """Leave out what stands under a name: a person has seen that entry, or removed it."""
    found = _read(kept, of)
    if name and found.pop(name, None) is not None:
        _write(kept, of, found)


def is_known_to_flow_rules(provenance: Provenance | None) -> bool:
    """Return whether a run had read anything that flow rules know."""
    return provenance is not None and bool(
        provenance.labels or provenance.servers or provenance.anything
    )


def _write(kept: Transaction, of: str, found: dict[str, Json]) -> None:
    kept.put(_KIND, of, "", json.dumps(found).encode("ascii"))


def _read(kept: Transaction, of: str) -> dict[str, Json]:
    return _decoded(kept.get(_KIND, of, ""))


def _decoded(data: bytes | None) -> dict[str, Json]:
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"": {"anything": True}}
