"""Puts servers that were moved behind the bridge back into their client's file.

Where the file is as the move left it, it gets back exactly the bytes that it had. Where it has
changed since, each entry goes back to its place in the table, verbatim, and an entry that the
client has under its name by now is never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.clients.document import Document
from bridge.clients.install import Change
from bridge.clients.journal import Journal, Record
from bridge.clients.move import Kept, open_target
from bridge.clients.writers import Target
from bridge.discovery.moved import MovedEntry, MovedFile

TAKEN = "the client has another server of this name now, which is not overwritten"
LOST = "the bridge's file no longer has it"


@dataclass(frozen=True, kw_only=True)
class Restore:
    """What goes back into one file; nothing is written yet.

    Attributes:
        before: The client's file as it is.
        after: The client's file with the entries.
        store: The text of the bridge's file, with those that stay.
        file: Its line in the manifest; without entries if all go back.
        restored: Names.
        kept: Names of those that stay behind the bridge, each with the reason.
        exact: Whether `after` is, to the byte, what the file was.
    """

    before: bytes | None
    after: bytes | None
    store: bytes
    file: MovedFile
    restored: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    exact: bool = False


def plan_restore(
    target: Target, raw: bytes | None, *, kept: Kept, records: Sequence[Record] = ()
) -> Restore:
    """Decide what goes back into a client's file.

    Args:
        raw: The file as it is; None if it is gone.
        records: The journal's of this file, the oldest first.

    Raises:
        UsageError: The bridge's files cannot be read.
        UneditableError: The file cannot be changed exactly.
    """
    file = kept.file_of(target)
    store = open_target(target, kept.text(file))
    if not file.entries:
        return Restore(before=raw, after=raw, store=b"", file=file)
    undone = _undone(raw, records)
    if undone is not None and _has_all(open_target(target, undone), file, store):
        names = tuple(each.name for each in file.entries)
        gone = replace(file, entries=())
        return Restore(before=raw, after=undone, store=b"", file=gone, restored=names, exact=True)
    present = open_target(target, raw)
    staying: list[MovedEntry] = []
    restored, why = [], []
    # The first of them first: then each comes to stand where it stood.
    for each in sorted(file.entries, key=lambda entry: entry.index):
        entry, there = store.entry(each.table, each.name), present.entries(each.table)
        if entry is None:
            why.append((each.name, LOST))
        elif each.name in there and there[each.name] != entry.value:
            staying.append(each)
            why.append((each.name, TAKEN))
        else:
            if each.name not in there:
                present = present.with_text(each.table, entry, index=each.index)
            store = store.without(each.table, each.name)
            restored.append(each.name)
    return Restore(
        before=raw,
        after=present.encode() if restored else raw,
        store=store.encode(),
        file=replace(file, entries=tuple(staying)),
        restored=tuple(restored),
        kept=tuple(why),
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
    change: Change, restore: Restore, kept: Kept, journal: Journal, record: Record | None = None
) -> Change:
    """Return a change, planned for a file with its servers back, that puts them back before.

    Args:
        change: Planned for `restore.after`.
        record: What it undoes besides.
    """
    target, before = change.target, restore.before
    made = [restore]

    def edit(now: bytes | None) -> bytes | None:
        made[0] = plan_restore(target, now, kept=kept, records=_records(journal, target))
        return change.edit(made[0].after)

    def finish() -> None:
        change.finish()
        kept.write(made[0].file, made[0].store)
        done = [] if made[0].file.entries else _records(journal, target)
        for each in done:
            if each.action == "move" or each == record:
                journal.drop(each.id)

    notes = [f"{name} stays behind the bridge: {reason}." for name, reason in restore.kept]
    if restore.restored and not restore.exact:
        notes.append("The file has changed since, so the servers are put back one by one.")
    return replace(
        change,
        before=before,
        after=edit(before),
        edit=edit,
        finish=finish if restore.restored else change.finish,
        turn=kept.turn if restore.restored else change.turn,
        notes=(*change.notes, *notes),
        restored=restore.restored,
    )


def restore_of(target: Target, raw: bytes | None, kept: Kept, journal: Journal) -> Restore:
    """Return what goes back into a file, by what the journal has of it."""
    return plan_restore(target, raw, kept=kept, records=_records(journal, target))


def _records(journal: Journal, target: Target) -> list[Record]:
    return [each for each in journal.records() if each.path == str(target.path)]
