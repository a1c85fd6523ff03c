"""Moves servers out of a client's file behind the bridge, and back; keeps their text.

An entry is taken verbatim into a file of the bridge's own, in the client's format and at the same
table, where discovery reads it as the rest of the client's file. That file is written, and on the
disk, before the client's file loses the entry: whoever kills this in between leaves it twice, which
discovery understands and the next move cleans up.

A file that is as the move left it gets back exactly the bytes that it had. Where it has changed
since, each entry goes back to its place in the table, verbatim, and an entry that the client has
under its name now is never overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bridge.atomic_files import replace_file
from bridge.client_configs.document import Document, Table
from bridge.client_configs.entry import is_bridge
from bridge.client_configs.install import Change, open_target
from bridge.client_configs.journal import Journal, MoveRecord, turn_in
from bridge.client_configs.writers import Machine, Target, readable
from bridge.discovery.documents import MAX_FILE_BYTES, MalformedError
from bridge.discovery.files import ABSENT, read_regular
from bridge.discovery.finder import Discovery
from bridge.discovery.moved import (
    MANIFEST,
    MovedEntry,
    MovedFile,
    manifest_text,
    read_manifest,
)
from bridge.discovery.precedence import SHADOWED, UNUSED
from bridge.errors import BridgeError, UsageError
from bridge.model import ServerSpec, Source
from bridge.private_files import make_directory

SCOPES = ("user", "local", "project", "profile", "agent")  # Of files that are the user's to change.

LoggedIn = Callable[[ServerSpec], bool]


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Servers that leave one file of a client, or come back into it; nothing is written yet.

    Attributes:
        before, after: The client's file as it is, and with the change; None if there is none.
        store: The text of the bridge's file.
        file: Its line in the manifest; without entries if none is left there.
        moved: The entries that go from one to the other, by name, decoded.
        stay: Names of those that were asked for and stay, each with the reason.
        exact: Whether `after` is, to the byte, what the file was before it lost the entries.
    """

    before: bytes | None
    after: bytes | None
    store: bytes
    file: MovedFile
    moved: Mapping[str, object] = field(default_factory=dict, repr=False)
    stay: tuple[tuple[str, str], ...] = ()
    exact: bool = False


class KeptServer:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> tuple[MovedFile, ...]:
        """Return what was moved, by file.

        Raises:
            UsageError: The manifest cannot be read, so that nothing may be moved or restored.
        """
        try:
            return read_manifest(self.directory)
        except MalformedError as error:
            path = self.directory / MANIFEST
            remedy = "Repair the file, or move it away."
            raise UsageError(f"{path}: {error}.", remedy=remedy) from None

    def file_of(self, target: Target) -> MovedFile:
        """Return what was moved out of a file; without entries if nothing was."""
        found = next((each for each in self.files() if each.original == target.path), None)
        if found is not None:
            return found
        digest = hashlib.sha256(str(target.path).encode("utf-8", "surrogateescape")).hexdigest()
        suffix = target.path.suffix or ".json"
        return MovedFile(
            original=target.path,
            store=self.directory / f"{target.location.id}-{digest[:12]}{suffix}",
            client=target.location.id,
            entries=(),
        )

    def text(self, file: MovedFile) -> bytes:
        """Return the text of the bridge's file; empty if there is none yet."""
        raw = read_regular(file.store, limit=MAX_FILE_BYTES)
        if raw == ABSENT:
            return b""
        if isinstance(raw, str):
            raise UsageError(f"{file.store}: {raw}.", remedy="The moved servers are in this file.")
        return raw

    def write(self, file: MovedFile, text: bytes) -> None:
        """Keep a file's moved entries, on the disk; without entries it is removed.

        The manifest names only files that are there, and a file goes after its line.
        """
        make_directory(self.directory)
        others = tuple(each for each in self.files() if each.original != file.original)
        if file.entries:
            replace_file(file.store, text, durable=True)
        files = (*others, file) if file.entries else others
        replace_file(self.directory / MANIFEST, manifest_text(files), durable=True)
        if not file.entries:
            file.store.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Mover:
    """What decides which servers move.

    Attributes:
        names: Of servers; None for all that can be moved.
        found: What discovery finds with the clients' files as they are.
        kept: Where they go.
        logged_in: Whether the bridge has a login of its own to a server.
    """

    names: Sequence[str] | None
    found: Discovery
    kept: KeptServer
    logged_in: LoggedIn

    def plan(self, tables: Sequence[Target], raw: bytes | None) -> Shift:
        """Decide what is moved out of one file."""
        document = before = open_target(tables[0], raw)
        file = self.kept.file_of(tables[0])
        store = open_target(tables[0], self.kept.text(file))
        entries: dict[tuple[Table, str], MovedEntry] = {}
        for each in file.entries:
            held, there = (of.entry(each.table, each.name) for of in (store, before))
            if held is not None and there is not None and held.value == there.value:
                # The client's file still has it, or has it again.
                store = store.without(each.table, each.name)
            elif held is not None:
                entries[each.table, each.name] = each
        moved: dict[str, object] = {}
        refused: list[tuple[str, str]] = []
        for target in tables:
            inner = {each.table for each in tables}
            for index, (name, value) in enumerate(before.entries(target.table).items()):
                if (*target.table, name) in inner or not self._wants(name, value, target):
                    continue
                reason = self._refusal(name, value, target)
                if (target.table, name) in entries:
                    reason = f"another server of this name was moved already, to {file.store}"
                if reason:
                    refused.append((name, reason))
                    continue
                entry = before.entry(target.table, name)
                assert entry is not None
                store = store.without(target.table, name).with_text(target.table, entry)
                document = document.without(target.table, name)
                at = MovedEntry(table=target.table, name=name, index=index)
                entries[target.table, name] = at
                moved[name] = value
        return Shift(
            before=raw,
            after=document.encode() if moved else raw,
            store=store.encode(),
            file=replace(file, entries=tuple(entries.values())),
            moved=moved,
            stay=tuple(refused),
        )

    def _wants(self, name: str, value: object, target: Target) -> bool:
        if self.names is not None:
            return name in self.names
        return not is_bridge(name, value, target.location.dialect)

    def _refusal(self, name: str, value: object, target: Target) -> str:
        """Return why an entry cannot be moved; empty if it can.

        What discovery cannot use in the client's file it could not use behind the bridge either.
        """
        client = target.location.client
        if is_bridge(name, value, target.location.dialect):
            return "it is the bridge itself"
        if target.scope == "project" and "${input:" in json.dumps(value, default=str):
            return "the project's file, which others change, has the values of its inputs"
        for each in self.found.skipped:
            if each.name == name and _is_at(each.source, target):
                # One that is turned off holds its name, and stays off behind the bridge.
                if each.holds_name:
                    return ""
                if not each.reason.startswith(SHADOWED) or UNUSED in each.reason:
                    return each.reason
                other = each.reason.removeprefix(SHADOWED)
                return (
                    f"{other} defines another server of this name, and the bridge has one of each: "
                    "rename one of the two and move again, or delete this one if the other will do"
                )
        if any(_is_here(each.spec, name, target) for each in self.found.proposed):
            return f"you have not approved it: `mcp-code-bridge servers approve {name}`"
        here = (spec for spec in self.found.servers if _is_here(spec, name, target))
        spec = next(here, None)
        if spec is None:
            return f"only {client} can start it"
        if spec.oauth is not None and not self.logged_in(spec):
            return f"{client} holds its login; move it after `mcp-code-bridge login {name}`"
        return ""


def _is_here(spec: ServerSpec, name: str, target: Target) -> bool:
    places = (spec.source, *spec.also)
    return spec.name == name and any(_is_at(place, target) for place in places)


def _is_at(source: Source, target: Target) -> bool:
    # Claude Code's file has servers for all projects, and for single ones.
    return source.path == str(target.path) and source.key.startswith(target.table[0])


def _shifted(
    change: Change,
    kept: KeptServer,
    first: Shift,
    plan: Callable[[bytes | None], Shift],
    *,
    finish: Callable[[Shift], None] | None = None,
) -> Change:
    """Return a change that makes a shift before it; what is kept belongs to the latest edit.

    Args:
        plan: Returns the shift for the file's present content.
        finish: Called with the latest shift when the file is replaced, after that is kept; unless
            given, the shift is kept before.
    """
    latest = first

    def edit(now: bytes | None) -> bytes | None:
        nonlocal latest
        latest = plan(now)
        return change.edit(latest.after)

    def keep() -> None:
        kept.write(latest.file, latest.store)

    def done() -> None:
        change.finish()
        if finish is not None:
            keep()
            finish(latest)

    changed = replace(change, before=first.before, after=edit(first.before), edit=edit)
    if not first.moved:
        return changed
    keeps = change.keep if finish is not None else keep
    return replace(changed, turn=partial(turn_in, kept.directory), keep=keeps, finish=done)


def with_move(change: Change, tables: Sequence[Target], mover: Mover) -> Change:
    """Return a change of a client's file that moves servers out of it as well."""
    first = mover.plan(tables, change.before)

    def plan(now: bytes | None) -> Shift:
        shift = mover.plan(tables, now)
        # What moves counts as approved, so it must be what was shown or approved.
        if any(first.moved.get(name) != value for name, value in shift.moved.items()):
            raise BridgeError(
                f"{change.target.path} was not changed: its servers are not those shown any more.",
                remedy="Look at what changed, then try again.",
                code="changed_meanwhile",
            )
        return shift

    moving = _shifted(change, mover.kept, first, plan)
    return replace(moving, moved=first.moved, refused=first.stay)


def move_only(target: Target, raw: bytes | None) -> Change:
    """Return a change that does nothing yet, for a file that does not get the bridge."""
    return Change(target=target, action="move", edit=lambda now: now, before=raw, after=raw)


def tables_of(
    machine: Machine, client: str, scope: str, gone: Collection[Path] = ()
) -> dict[Path, list[Target]]:
    """Return a client's files with servers, each once for each of its tables."""
    found: dict[Path, list[Target]] = {}
    for target in readable(machine, gone):
        mine = target.writer.id == client and target.scope == scope
        own = target.location.holds == "servers" and target.location.scope in SCOPES
        if mine and own:
            found.setdefault(target.path, []).append(target)
    return found


def restore_of(target: Target, raw: bytes | None, kept: KeptServer, journal: Journal) -> Shift:
    """Decide what goes back into a client's file, by what the journal has of it."""
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
            taken = "the client has another server of this name now, which is not overwritten"
            why.append((each.name, taken))
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


def _undone(raw: bytes | None, records: Sequence[MoveRecord]) -> bytes | None:
    """Return the file before the newest moves in a row that led to what it is; None if none did."""
    found = None
    for record in reversed(records):
        if record.action != "move" or not record.describes(raw):
            break
        found = raw = record.before
    return found


def _has_all(document: Document, file: MovedFile, store: Document) -> bool:
    """Return whether a document has every moved entry as it is kept."""
    pairs = [[of.entry(each.table, each.name) for of in (store, document)] for each in file.entries]
    return all(kept and there and kept.value == there.value for kept, there in pairs)


def with_restore(
    change: Change,
    restore: Shift,
    kept: KeptServer,
    journal: Journal,
    record: MoveRecord | None = None,
) -> Change:
    """Return a change, planned for a file with its servers back, that puts them back before."""
    target = change.target

    def finish(latest: Shift) -> None:
        for each in () if latest.file.entries else _records(journal, target):
            if each.action == "move" or each == record:
                journal.drop(each.id)

    notes = [f"{name} stays behind the bridge: {reason}." for name, reason in restore.stay]
    if restore.moved and not restore.exact:
        notes.append("The file has changed since, so the servers are put back one by one.")
    again = partial(restore_of, target, kept=kept, journal=journal)
    back = _shifted(change, kept, restore, again, finish=finish)
    return replace(back, notes=(*change.notes, *notes), restored=tuple(restore.moved))


def _records(journal: Journal, target: Target) -> list[MoveRecord]:
    return [each for each in journal.records() if each.path == str(target.path)]
