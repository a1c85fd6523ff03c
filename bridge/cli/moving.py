"""`install --move` and `uninstall --restore`: extend the changes of clients' files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import anyio.to_thread

from bridge.cli.output import write_err_line
from bridge.client_configs.entry import is_bridge
from bridge.client_configs.install import Change, open_target, read_target
from bridge.client_configs.journal import Journal, MovedServers
from bridge.client_configs.move import Mover, move_only, tables_of, with_move, with_restore
from bridge.client_configs.writers import Scope, Target, targets, writer_for
from bridge.discovery.documents import size_limit
from bridge.discovery.files import read_regular
from bridge.discovery.finder import locations_read
from bridge.discovery.locations import Machine
from bridge.errors import UsageError
from bridge.inventory.configuration import consents_of
from bridge.inventory.inventory import ToolCache
from bridge.settings import Settings, moved_dir, store_of
from bridge.upstream.token_store import TokenStore, key_of

ALL = "all"  # The word for every server that can be moved.

_UNASKED = ("autoApprove", "alwaysAllow", "autoApproved", "always_allow", "trust")
"""Fields of an entry that let a client call tools without asking."""


async def with_moves(
    planned: Sequence[Change], asked: str, settings: Settings, machine: Machine
) -> list[Change]:
    """Add moves of the `asked` servers, or of `ALL`, out of all files of one scope."""
    for change in planned:
        if change.barred:
            name = change.target.writer.name
            message = f"Nothing was moved: {name} will not start {change.name}: {change.barred}."
            raise UsageError(message, remedy="Allow it there first.")
    discovery = await anyio.to_thread.run_sync(consents_of(settings).discover, machine.context)
    names = None if asked == ALL else [name.strip() for name in asked.split(",") if name.strip()]
    logins = TokenStore(settings.state_dir / "logins")
    mover = Mover(
        names=names,
        discovery=discovery,
        kept=MovedServers(moved_dir(settings.environ)),
        logged_in=lambda spec: logins.path(key_of(spec)).exists(),
    )
    read = {row.id for row in locations_read(machine.context)}
    changes: list[Change] = []
    for target in {each.target.writer.id: each.target for each in planned}.values():
        if target.location.id not in read:
            message = f"The bridge does not read {target.writer.name}'s files."
            remedy = f"Add {target.location.id} to {settings.place('sources')}."
            raise UsageError(message, remedy=remedy)
        tables = tables_of(machine, target.writer.id, target.scope)
        for change in planned:
            if change.target.writer.id != target.writer.id:
                continue
            group = None if change.commands else tables.pop(change.target.path, None)
            changes.append(with_move(change, group, mover) if group else change)
        for group in tables.values():
            change = with_move(move_only(group[0], read_target(group[0])), group, mover)
            if change.moved or change.refused:
                changes.append(change)
    seen = {name for change in changes for name in (*change.moved, *dict(change.refused))}
    missing = [name for name in names or () if name not in seen]
    if missing:
        message = f"None of these clients has a server {missing[0]!r:.100} in its files."
        raise UsageError(message, remedy="`mcp-code-bridge servers` shows where each one is.")
    load = ToolCache(store_of(settings)).load_all
    listings = await anyio.to_thread.run_sync(load, discovery.servers)
    views = [name for name, of in listings.items() if any(tool.has_view for tool in of.tools)]
    return [_with_notes(change, views, machine) for change in changes]


def _with_notes(change: Change, views: Collection[str], machine: Machine) -> Change:
    """Add notes about features of the client that moved servers lose."""
    client, settings = change.target.writer.name, ""
    notes = [
        f"{name} has views. Clients do not show them for a server behind the bridge."
        for name in change.moved
        if name in views
    ]
    if change.target.location.id == "claude-code":
        place = machine.places["claude_settings"][0] / "settings.json"
        raw = read_regular(place, limit=size_limit("json"))
        settings = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
    for name, value in change.moved.items():
        spelled = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        entry = value if isinstance(value, Mapping) else {}
        if any(map(entry.get, _UNASKED)) or re.search(rf'"mcp__{spelled}(?:__|")', settings):
            notes.append(
                f"{client}'s permissions for tools of {name} do not apply behind the bridge: "
                f"`mcp-code-bridge policy add {name}` proposes rules."
            )
    return replace(change, notes=(*change.notes, *notes)) if notes else change


def with_restores(
    planned: Iterable[Change],
    clients: Iterable[str],
    scope: Scope | None,
    settings: Settings,
    machine: Machine,
) -> list[Change]:
    kept = MovedServers(moved_dir(settings.environ))
    journal = Journal(settings.state_dir / "clients")
    changes = list(planned)
    for client in clients:
        for target in _moved_targets(client, scope, kept, machine):
            own = next(
                (c for c in changes if c.target.path == target.path and not c.commands), None
            )
            if own is not None:
                changes.remove(own)
            base = own or move_only(target, read_target(target))
            changes.append(with_restore(base, kept, journal))
    return changes


def _moved_targets(
    client: str, scope: Scope | None, kept: MovedServers, machine: Machine
) -> Iterator[Target]:
    """Yield a client's files from which servers were moved; they may no longer exist."""
    originals = {each.original for each in kept.files()}
    scopes: tuple[Scope, ...] = ("user", "project") if scope is None else (scope,)
    for each in scopes:
        tables = tables_of(machine, client, each, originals)
        files = {path: of_file[0] for path, of_file in tables.items()}
        with suppress(UsageError):
            written = targets(writer_for(client), each, machine)
            files = {**{target.path: target for target in written}, **files}
        yield from (target for path, target in files.items() if path in originals)


def write_stays(planned: Iterable[Change], settings: Settings) -> bool:
    """Warn of moved servers that a client loses with the bridge; return whether there are any."""
    files = {each.original: each for each in MovedServers(moved_dir(settings.environ)).files()}
    losing = [change for change in planned if change.target.path in files]
    for change in losing:
        names = ", ".join(entry.name for entry in files[change.target.path].entries)
        write_err_line(
            f"warning: this leaves {change.target.writer.name} without {names}, which moved "
            "behind the bridge. --restore puts them back."
        )
    return bool(losing)


def write_still_started(change: Change, moved: Collection[str]) -> None:
    """Name the servers that a client still starts itself, and the command that moves them."""
    target = change.target
    present = open_target(target, change.after).entries(target.table)
    dialect = target.location.dialect
    names = [n for n in present if n not in moved and not is_bridge(n, present[n], dialect)]
    if names and change.action == "install":
        scope = " --scope project" if target.scope == "project" else ""
        write_err_line(
            f"{target.writer.name} still starts these itself, and its model gets their tools "
            f"twice: {', '.join(names)}. To move them behind the bridge: "
            f"mcp-code-bridge install {target.writer.id}{scope} --move all"
        )
