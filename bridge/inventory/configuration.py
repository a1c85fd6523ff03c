"""Finds the configured servers, and describes them without a connection.

Imports neither the MCP SDK nor the packages that run programs, because the response to
`initialize` waits for this module.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bridge.catalog.docs import instructions
from bridge.catalog.entries import server_aliases
from bridge.discovery.finder import Discovery, DiscoveryContext, Watch
from bridge.discovery.report import SkippedServer
from bridge.inventory.consents import ProjectConsents, consents_of
from bridge.inventory.inventory import ToolInventory
from bridge.inventory.project_servers import waiting_line
from bridge.inventory.secrets import Secrets
from bridge.inventory.tool_cache import ToolCache
from bridge.settings import Settings, home, moved_dir, store_of, writable_places


class Finder(Protocol):
    def stamp(self) -> object:
        """Return a value that changes with the result of `find`."""
        ...

    def find(self) -> Discovery: ...


class ConfigFinder:
    def __init__(self, context: DiscoveryContext, consents: ProjectConsents) -> None:
        self._context = context
        self._consents = consents
        self._watch = Watch(context)

    def stamp(self) -> object:
        return self._watch.stamp(), self._consents.changes

    def find(self) -> Discovery:
        found = self._consents.discover(self._context)
        self._watch.add_references(found.references)
        return found


def with_unread(now: Discovery, before: Discovery) -> Discovery:
    """Return `now` with the servers that `before` had from files that cannot be read now.

    Clients write in place, and a half-written file must not remove servers in use.
    """
    unread = {warning.path for warning in now.warnings if warning.unread}
    taken = {spec.name for spec in now.servers}
    taken.update(entry.name for entry in now.skipped if entry.holds_name)
    kept = [
        spec for spec in before.servers if spec.source.path in unread and spec.name not in taken
    ]
    return replace(now, servers=(*now.servers, *kept)) if kept else now


def with_own_aliases(found: Discovery) -> Discovery:
    """Return `found` without the project's servers that share an alias with one of the user's."""
    theirs = [spec for spec in found.servers if spec.source.scope == "project"]
    own = server_aliases([spec.name for spec in found.servers if spec.source.scope != "project"])
    whose = {alias: name for name, alias in own.items()}
    skipped = [
        SkippedServer(
            name=spec.name,
            source=spec.source,
            reason=f"programs call your server {whose[alias]!r} by the name {alias!r}",
        )
        for spec in theirs
        if (alias := server_aliases([spec.name])[spec.name]) in whose
    ]
    left_out = {each.name for each in skipped}
    servers = tuple(spec for spec in found.servers if spec.name not in left_out)
    return replace(found, servers=servers, skipped=(*found.skipped, *skipped))


def context_for(
    settings: Settings, cwd: str | None = None, platform: str = sys.platform
) -> DiscoveryContext:
    return DiscoveryContext(
        home=home(settings.environ),
        cwd=Path(cwd or Path.cwd()),
        platform="darwin" if platform == "darwin" else "win32" if platform == "win32" else "linux",
        environ=settings.environ,
        extra_config=settings.servers_config,
        allow_self=settings.allow_self_server,
        project_servers=settings.project_servers,
        sources=settings.sources,
        sources_place=settings.place("sources"),
        exposed=writable_places(settings),
        directories=settings.offered_directories,
        moved=moved_dir(settings.environ),
    )


def server_instructions(inventory: ToolInventory, discovery: Discovery) -> str:
    return instructions(inventory.initial_entries(), waiting_line(discovery.proposed))


def first_instructions(settings: Settings) -> str:
    context = context_for(settings)
    discovery = with_own_aliases(ConfigFinder(context, consents_of(settings)).find())
    secrets = Secrets(settings.environ, settings.secret_names)
    secrets.configure(discovery.servers)
    inventory = ToolInventory(redactor=secrets.redactor)
    with closing(store_of(settings)) as store:
        inventory.configure(discovery.servers, ToolCache(store).load_all(discovery.servers))
    return server_instructions(inventory, discovery)
