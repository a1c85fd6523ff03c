"""Puts servers that were moved behind the bridge back into their client's file.

Where the file is as the move left it, it gets back exactly the bytes that it had. Where it has
changed since, each entry goes back to its place in the table, verbatim, and an entry that the
client has under its name by now is never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bridge.clients.document import Document
from bridge.clients.install import Change, open_target
from bridge.clients.journal import Journal, Record
from bridge.clients.move import Kept, Shift, Shifting
from bridge.clients.writers import Target
from bridge.discovery.moved import MovedEntry, MovedFile

TAKEN = "the client has another server of this name now, which is not overwritten"


def restore_of(target: Target, raw: bytes | None, kept: Kept, journal: Journal) -> Shift:
    """Decide what goes back into a client's file, by what the journal has of it.

    Args:
        raw: The file as it is; None if it is gone.

    Raises:
        UsageError: The bridge's files cannot be read.
        UneditableError: The file cannot be changed exactly.
    """
    file = kept.file_of(target)
    store = open_target(target, kept.text(file))
    if not file.entries:
        return Shift(before=raw, after=raw, store=b"", file=file)
    undone = _undone(raw, _records(journal, target))
    if undone is not None and _has_all(open_target(target, undone), file, store):
        names = {each.name: None for each in file.entries}
        gone = replace(file, entries=())
        return Shift(before=raw, after=undone, store=b"", file=gone, moved=names, exact=True)
    present = open_target(target, raw)
    staying: list[MovedEntry] = []
    restored: dict[str, object] = {}
    why = []
    # The first of them first: then each comes to stand where it stood.
    for each in sorted(file.entries, key=lambda entry: entry.index):
        entry, there = store.entry(each.table, each.name), present.entries(each.table)
        if entry is None:
            why.append((each.name, "the bridge's file does not have it"))
        elif each.name in there and there[each.name] != entry.value:
            staying.append(each)
            why.append((each.name, TAKEN))
        else:
            if each.name not in there:
                present = present.with_text(each.table, entry, index=each.index)
            store = store.without(each.table, each.name)
            restored[each.name] = entry.value
    return Shift(
        before=raw,
        after=present.encode() if restored else raw,
        store=store.encode(),
        file=replace(file, entries=tuple(staying)),
        moved=restored,
        stay=tuple(why),
    )


def _undone(raw: bytes | None, records: Sequence[Record]) -> bytes | None:
    """Return the file before the newest moves in a row that led to what it is; None if none did."""
    found = None
    for record in reversed(records):
        if record.action != "move" or not record.describes(raw):
            break
        found = raw = record.before
    return found


def _has_all(document: Document, file: MovedFile, store: Document) -> bool:
    """Return whether a document has every moved entry as it is kept."""
    return all(
        (entry := store.entry(each.table, each.name)) is not None
        and document.entries(each.table).get(each.name) == entry.value
        for each in file.entries
    )


def with_restore(
    change: Change, restore: Shift, kept: Kept, journal: Journal, record: Record | None = None
) -> Change:
    """Return a change, planned for a file with its servers back, that puts them back before.

    Args:
        change: Planned for `restore.after`.
        record: What it undoes besides.
    """
    target, before = change.target, restore.before
    again = partial(restore_of, target, kept=kept, journal=journal)
    shifting = Shifting(change, kept, again, restore)

    def finish() -> None:
        change.finish()
        shifting.keep()
        done = [] if shifting.latest.file.entries else _records(journal, target)
        for each in done:
            if each.action == "move" or each == record:
                journal.drop(each.id)

    notes = [f"{name} stays behind the bridge: {reason}." for name, reason in restore.stay]
    if restore.moved and not restore.exact:
        notes.append("The file has changed since, so the servers are put back one by one.")
    return replace(
        change,
        before=before,
        after=shifting.edit(before),
        edit=shifting.edit,
        finish=finish if restore.moved else change.finish,
        turn=kept.turn if restore.moved else change.turn,
        notes=(*change.notes, *notes),
        restored=tuple(restore.moved),
    )


def _records(journal: Journal, target: Target) -> list[Record]:
    return [each for each in journal.records() if each.path == str(target.path)]
