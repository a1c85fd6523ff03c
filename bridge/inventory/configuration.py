"""Finds the configured servers, and describes them without a connection.

A client's own approvals of a project's servers count only if they existed when this bridge started.
A program may have written later ones, so the user has to approve their servers.

Imports neither the MCP SDK nor the packages that run programs, because the response to
`initialize` waits for this module.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from bridge.catalog.entries import server_aliases
from bridge.discovery.consents import PERSON, Consent, ConsentFile, Consents
from bridge.discovery.documents import MalformedError
from bridge.discovery.finder import Discovery, DiscoveryContext, Watch, discover
from bridge.discovery.precedence import NOT_APPROVED
from bridge.discovery.report import ConfigWarning, Definition, ProposedServer, SkippedServer
from bridge.errors import ApprovalNeededError
from bridge.gate.question import (
    MAX_PLAN_LINES,
    form,
    one_line,
    quote_text,
    safe_name,
    visible_lines,
)
from bridge.model import Json
from bridge.settings import Settings, home, moved_dir, writable_places
from bridge.text import list_names

logger = logging.getLogger(__name__)

FILE_NAME = "project-servers.json"  # In the state directory.


class ProjectConsents:
    """The approvals that count for one bridge. All methods except `allow_for_now` access files."""

    def __init__(self, file: ConsentFile) -> None:
        self._file = file
        self._now: frozenset[Definition] = frozenset()
        self._seen: frozenset[Consent] | None = None
        self.changes = 0  # Grows with each approval that is not saved.

    def discover(self, context: DiscoveryContext) -> Discovery:
        warnings: tuple[ConfigWarning, ...] = ()
        try:
            kept = self._file.read()
        except MalformedError as error:
            kept = ()
            warnings = (ConfigWarning(path=str(self._file.path), key="", reason=str(error)),)
        by_person = frozenset(each.definition for each in kept if each.by == PERSON)
        first = self._seen is None and not warnings
        if self._seen is None:
            self._seen = frozenset(each for each in kept if each.by != PERSON)
        consents = Consents(by_person=by_person | self._now, seen=self._seen, first=first)
        found = discover(replace(context, consents=consents))
        if found.first_seen:
            try:
                self._file.add(found.first_seen)
            except MalformedError as error:
                logger.warning("approvals of clients do not count: %s", error)
                # If they are not saved, the next bridge would accept changed ones.
                found = discover(replace(context, consents=replace(consents, first=False)))
        self._seen |= frozenset(found.first_seen)
        return replace(
            found,
            warnings=(*warnings, *found.warnings),
            references=(*found.references, self._file.path),
        )

    def allow(self, definition: Definition) -> None:
        self._file.add([Consent(definition=definition)])

    def allow_for_now(self, definition: Definition) -> None:
        self._now |= {definition}
        self.changes += 1


def consents_of(settings: Settings) -> ProjectConsents:
    return ProjectConsents(ConsentFile(settings.state_dir / FILE_NAME))


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


MAX_CHARS = 4000
"""Characters of a repository's text in a question. A longer definition cannot be approved so."""

_INDENT = "    "


def approval_needed(proposal: ProposedServer, more: str = "") -> ApprovalNeededError:
    file = os.path.relpath(proposal.source.path, proposal.definition.directory)
    reason = proposal.reason
    if reason == NOT_APPROVED:
        reason = "the user has not approved it"
    message = (
        f"The server {safe_name(proposal.name)} of this project ({quote_text(file, MAX_CHARS)}) "
        f"is not started: {reason}.{more}"
    )
    return ApprovalNeededError(
        message,
        remedy=f"The user can approve it: {proposal.remedy}.",
        host_detail=f"In {proposal.source}.",
    )


def waiting_line(proposals: Sequence[ProposedServer]) -> str:
    if not proposals:
        return ""
    names = list_names(list(dict.fromkeys(safe_name(each.name) for each in proposals)), 5)
    return (
        f"Not approved, so not started (servers of this project): {names}. The user can look at "
        "one and approve it: `mcp-code-bridge servers approve NAME`."
    )


@lru_cache(maxsize=2048)
def reference_names(name: str) -> frozenset[str]:
    """Return a server's names in programs: its own name, its alias and its variable."""
    alias = server_aliases([name])[name]
    return frozenset((name, alias, f"mcp_{alias}"))


def definition_lines(proposal: ProposedServer) -> list[str]:
    """Return the facts about a server for its approval, without the definition itself."""
    definition = proposal.definition
    spec = proposal.spec
    start = f"started as: {one_line(spec.command, MAX_CHARS)}"
    if spec.transport != "stdio":
        start = "connected to over the network, with the variables that the definition names"
    return [
        f"in: {one_line(definition.path, MAX_CHARS)}",
        f"used in: {one_line(definition.directory, MAX_CHARS)}",
        start,
        *([] if proposal.reason == NOT_APPROVED else [f"why it waits: {proposal.reason}"]),
        f"digest: {definition.digest.removeprefix('sha256:')}",
    ]


def approval_question(proposal: ProposedServer) -> Mapping[str, Json] | None:
    """Return the question's elicitation parameters; None if the definition is too long."""
    shown, rest = visible_lines(proposal.spec.written, MAX_PLAN_LINES, MAX_CHARS)
    if rest:
        return None
    name = safe_name(proposal.name)
    lines = [f"{_INDENT}Use server {name}, which this project defines?"]
    lines += [f"{_INDENT}{line}" for line in definition_lines(proposal)]
    lines.append(f"{_INDENT}It is not sandboxed. Its definition, exactly as the file has it:")
    lines += [f"{_INDENT}{line}" for line in shown]
    titles = {
        "session": "Until the bridge ends",
        "always": "Always, until its definition changes",
        "no": "No",
    }
    return form("\n".join(lines), titles)
