"""Moves servers, verbatim, out of a client's file behind the bridge, and back.

The bridge writes an entry to its own file before the client's file loses it. If it is killed in
between, both files have the entry; discovery accepts that, and the next move cleans up.
A restore never overwrites another entry of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bridge.client_configs.document import Table
from bridge.client_configs.entry import is_bridge
from bridge.client_configs.install import Change, open_target
from bridge.client_configs.journal import Journal, MovedServers
from bridge.client_configs.writers import Target, readable
from bridge.discovery.finder import Discovery
from bridge.discovery.locations import Machine
from bridge.discovery.moved import MovedEntry
from bridge.discovery.precedence import SHADOWED, UNUSED
from bridge.errors import BridgeError
from bridge.model import ServerSpec, Source

SCOPES = ("user", "local", "project", "profile", "agent")  # Scopes of files that a user may change.


@dataclass(frozen=True, kw_only=True)
class Mover:
    """Decides which servers move from a client's configuration to the bridge's directory."""

    names: Sequence[str] | None  # The servers that the user named; None for all that can be moved.
    discovery: Discovery  # The servers before the move.
    kept: MovedServers
    # Returns whether the bridge has its own login to a server.
    logged_in: Callable[[ServerSpec], bool]

    def wants(self, name: str, value: object, target: Target) -> bool:
        if self.names is not None:
            return name in self.names
        return not is_bridge(name, value, target.location.dialect)

    def refusal(self, name: str, value: object, target: Target) -> str:
        """Return the reason why an entry cannot be moved; empty if it can.

        An entry that discovery cannot use in the client's file would not work behind the bridge.
        """
        client = target.location.client
        if is_bridge(name, value, target.location.dialect):
            return "it is the bridge itself"
        if target.scope == "project" and "${input:" in json.dumps(value, default=str):
            return "it uses inputs that the project's file defines, and others change that file"
        for each in self.discovery.skipped:
            if each.name == name and _is_at(each.source, target):
                # A server that is switched off reserves its name and stays off after the move.
                if each.holds_name:
                    return ""
                if not each.reason.startswith(SHADOWED) or UNUSED in each.reason:
                    return each.reason
                other = each.reason.removeprefix(SHADOWED)
                return (
                    f"{other} defines another server of this name, and the bridge uses only one: "
                    "rename one of the two and move again, or delete this one"
                )
        if any(_is_here(each.spec, name, target) for each in self.discovery.proposed):
            return f"you have not approved it; run `mcp-code-bridge servers approve {name}`"
        here = (spec for spec in self.discovery.servers if _is_here(spec, name, target))
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
    # Claude Code's file has a table for all projects and a table for each project.
    return source.path == str(target.path) and source.key.startswith(target.table[0])


def with_move(
    change: Change,
    tables: Sequence[Target],
    mover: Mover,
    shown: Mapping[str, object] | None = None,
) -> Change:
    """Extend a change of a client's file so that it first moves servers out of the given tables.

    `shown` has the entries that the user has seen, by name; None before they are shown.
    """
    document = before = open_target(tables[0], change.before)
    file = mover.kept.file_of(tables[0])
    store = open_target(tables[0], mover.kept.text(file))
    entries: dict[tuple[Table, str], MovedEntry] = {}
    for each in file.entries:
        held, present = (of.entry(each.table, each.name) for of in (store, before))
        if held is not None and present is not None and held.value == present.value:
            # The client's file has the entry too: a move was interrupted, or the user added it.
            store = store.without(each.table, each.name)
        elif held is not None:
            entries[each.table, each.name] = each
    moved: dict[str, object] = {}
    refused: list[tuple[str, str]] = []
    inner = {each.table for each in tables}
    for target in tables:
        for index, (name, value) in enumerate(before.entries(target.table).items()):
            if (*target.table, name) in inner or not mover.wants(name, value, target):
                continue
            reason = mover.refusal(name, value, target)
            if (target.table, name) in entries:
                reason = f"another server of this name has moved to {file.store}"
            entry = before.entry(target.table, name)
            if reason or entry is None:
                refused.append((name, reason))
                continue
            store = store.without(target.table, name).with_text(target.table, entry)
            document = document.without(target.table, name)
            entries[target.table, name] = MovedEntry(table=target.table, name=name, index=index)
            moved[name] = value
    # A moved server counts as approved, so its entry must equal the one that the user saw.
    if shown is not None and any(shown.get(name) != value for name, value in moved.items()):
        raise BridgeError(
            f"{change.target.path} was not changed: its servers changed after they were shown.",
            remedy="Run the command again to see the present ones.",
            code="changed_meanwhile",
        )
    seen = moved if shown is None else shown
    return replace(
        change.again(document.encode() if moved else change.before),
        before=change.before,
        again=lambda now: with_move(replace(change, before=now), tables, mover, seen),
        moved=moved,
        refused=tuple(refused),
        kept=mover.kept if moved else None,
        file=replace(file, entries=tuple(entries.values())),
        store=store.encode(),
    )


def move_only(target: Target, raw: bytes | None) -> Change:
    """Return an empty change of a file that does not get the bridge."""
    again = partial(move_only, target)
    return Change(target=target, action="move", again=again, before=raw, after=raw)


def tables_of(
    machine: Machine, client: str, scope: str, gone: Collection[Path] = ()
) -> dict[Path, list[Target]]:
    """Return a client's files that have servers, with a target for each table."""
    tables: dict[Path, list[Target]] = {}
    for target in readable(machine, gone):
        matches = target.writer.id == client and target.scope == scope
        own = target.location.holds == "servers" and target.location.scope in SCOPES
        if matches and own:
            tables.setdefault(target.path, []).append(target)
    return tables


def with_restore(change: Change, kept: MovedServers, journal: Journal) -> Change:
    """Extend a change of a client's file so that it first puts moved servers back."""
    target, raw = change.target, change.before
    file = kept.file_of(target)
    store = open_target(target, kept.text(file))
    before = raw
    for record in reversed(journal.records(target.path)):
        # Follow the newest moves back from the file's present content.
        if record.action != "move" or not record.describes(before):
            break
        before = record.before
    whole = open_target(target, before)
    pairs = [[of.entry(each.table, each.name) for of in (store, whole)] for each in file.entries]
    moved = bool(pairs) and before is not None and before != raw
    exact = moved and all(held and was and held.value == was.value for held, was in pairs)
    after = before if exact else raw
    staying: list[MovedEntry] = []
    restored: list[str] = []
    notes = []
    present = open_target(target, after)
    # Ascending indexes put each entry back at its original position.
    for each in sorted(file.entries, key=lambda entry: entry.index):
        entry, entries = store.entry(each.table, each.name), present.entries(each.table)
        if entry is None:
            notes.append(f"{each.name} is not restored: {file.store} does not have it.")
        elif each.name in entries and entries[each.name] != entry.value:
            staying.append(each)
            why = "the client now has another server of this name"
            notes.append(f"{each.name} stays behind the bridge: {why}.")
        else:
            if each.name not in entries:
                present = present.with_text(each.table, entry, index=each.index)
            store = store.without(each.table, each.name)
            restored.append(each.name)
    if restored and not exact:
        notes.append("The file has changed since the move, so the servers are put back one by one.")
        after = present.encode()
    back = change.again(after)
    return replace(
        back,
        before=raw,
        again=lambda now: with_restore(replace(change, before=now), kept, journal),
        notes=(*back.notes, *notes),
        restored=tuple(restored),
        kept=kept if restored else None,
        file=replace(file, entries=tuple(staying)),
        store=store.encode(),
    )
