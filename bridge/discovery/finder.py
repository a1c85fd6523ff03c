"""Finds every MCP server that this user has configured, and the file that defines it.

Owns the I/O of discovery, the order of its steps, and the detection of changes. Never fails:
unusable entries become `Discovery.skipped` or `Discovery.warnings`. Blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from bridge.discovery.clients import LOCATIONS, SOURCE_IDS
from bridge.discovery.consents import Consent
from bridge.discovery.dialect import Location
from bridge.discovery.fields import EntryContext
from bridge.discovery.files import (
    ABSENT,
    FileReader,
    Fingerprint,
    fingerprint,
    is_absent,
    list_matching,
)
from bridge.discovery.locations import DiscoveryContext as DiscoveryContext
from bridge.discovery.locations import Places, Project, fill, fill_with_origin, machine_of
from bridge.discovery.moved import MANIFEST, MovedFile, read_moved
from bridge.discovery.parser import MAX_SERVERS, Parsed, parse_document
from bridge.discovery.plugins import extension_servers, plugin_servers
from bridge.discovery.precedence import Rules, is_bridge, merge
from bridge.discovery.report import ConfigWarning, ProposedServer, SkippedServer, shown
from bridge.discovery.user_lists import (
    ANY_NAME,
    Restrictions,
    decision_files,
    is_in_project,
    read_claude_approvals,
    read_restrictions,
    trusting_clients,
)
from bridge.discovery.variables import Variables, no_file
from bridge.discovery.writable_paths import WritablePaths, leave_out_writable
from bridge.model import ServerSpec, Source
from bridge.settings import parsers

Stamp = tuple[str | Fingerprint, ...]


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """The result of a search."""

    servers: tuple[ServerSpec, ...]  # The usable servers, strongest file first; names are unique.
    skipped: tuple[SkippedServer, ...]
    warnings: tuple[ConfigWarning, ...]
    stamp: Stamp  # Equals `survey(context).stamp()` while no file has changed.
    # Files that the configurations name, present or missing; not part of the stamp.
    references: tuple[Path, ...] = ()
    # Definitions of the project that need the user's approval.
    proposed: tuple[ProposedServer, ...] = ()
    # Clients' approvals that no bridge has seen before; the caller stores them.
    first_seen: tuple[Consent, ...] = ()
    # Seconds that clients wait for a call of the bridge, by source, from the bridge's entry in the
    # user's file.
    own_limits: Mapping[str, float] = field(default_factory=dict)
    restrictions: Restrictions = field(default_factory=Restrictions)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A file to read, if present. `place` is the start of its template, such as the project."""

    location: Location
    path: Path
    place: Path


def discover(context: DiscoveryContext) -> Discovery:
    # If a move changes the manifest before the survey reads it, search again.
    manifest = fingerprint(context.moved / MANIFEST) if context.moved else None
    search = _Search(context)
    # Before any other read, so that the next comparison detects a change during a read.
    stamp = search.survey().stamp()
    if manifest and manifest not in stamp:
        return discover(context)
    reader = search.reader
    reader.skip_absent(
        Path(each[0]) for each in stamp if not isinstance(each, str) and is_absent(each)
    )
    rules = search.rules
    files = list(search.files())
    usable, skipped, proposed, first_seen = merge(files, rules)
    shared = (context.exposed, context.directories)
    servers, unsafe = leave_out_writable(usable, *shared, context.cwd, context.environ)
    said = [warning for _, parsed in files for warning in parsed.warnings]
    for spec in servers:
        if spec.cwd is not None and not os.path.isdir(spec.cwd):  # noqa: PTH112 - never raises
            # The server is kept: the directory may be created.
            key = f"{spec.source.key}.cwd" if spec.source.key else "cwd"
            reason = "this directory does not exist, so the server will not start"
            said.append(ConfigWarning(path=spec.source.path, key=key, reason=reason))
    own_limits: dict[str, float] = {}
    for location, parsed in files:
        # Anyone may write a project's files.
        for entry in () if location.in_project else parsed.entries:
            if isinstance(entry, ServerSpec) and entry.call_timeout and is_bridge(entry):
                own_limits.setdefault(location.id, entry.call_timeout)
    own = str(context.extra_config)
    warnings = (
        *_unknown_sources(context.sources, context.sources_place),
        *(
            replace(each, own=not each.key) if each.path == own else each
            for each in (*search.moved.warnings, *search.warnings, *reader.warnings, *said)
        ),
    )
    # A file that is read for several scopes repeats its warnings.
    return Discovery(
        servers=servers,
        skipped=(*skipped, *unsafe),
        proposed=tuple(proposed),
        first_seen=tuple(first_seen),
        warnings=tuple(dict.fromkeys(warnings)),
        stamp=stamp,
        references=(*reader.references, *reader.noted),
        own_limits=own_limits,
        restrictions=rules.restrictions,
    )


def _replacement(candidate: _Candidate) -> Path | None:
    unless = candidate.location.unless
    return Path(os.path.normpath(candidate.path.parent / unless)) if unless else None


@dataclass(frozen=True, kw_only=True)
class ConfigurationSurvey:
    """The files that a discovery would read now. Opens none of them."""

    project: Project
    files: tuple[Path, ...]
    listed: tuple[Path, ...]  # Directories whose files all count.
    # Directories and `.git` that delimit the project; only their identity matters.
    around: tuple[Path, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return (*self.around, *self.listed, *self.files)

    def stamp(self) -> Stamp:
        return (*self.project.keys, *map(fingerprint, self.files))


def survey(context: DiscoveryContext) -> ConfigurationSurvey:
    """Return the files that discovery would read. Opens only a worktree's `.git` and `moved`."""
    return _Search(context).survey()


def fill_all(template: str, places: Places) -> Iterator[tuple[Path, Path]]:
    """Yield all paths of a template, and of the directories that match its `*`."""
    outer, star, inner = template.partition(f"{ANY_NAME}/")
    if not star:
        yield from fill_with_origin(template, places)
        return
    for path, place in fill_with_origin(f"{outer}{ANY_NAME}", places):
        for directory in list_matching(path.parent, "", path.name.removesuffix(ANY_NAME))[0]:
            yield directory / inner, place


class _Search:
    """One search for the files of a context and their servers."""

    def __init__(self, context: DiscoveryContext) -> None:
        self.context = context
        self.machine = machine_of(context)
        self.moved = read_moved(context.moved)
        self.warnings: list[ConfigWarning] = []
        self._candidates = list(self._list_candidates())

    @cached_property
    def reader(self) -> FileReader:
        return FileReader(WritablePaths(self.context.exposed))

    def _list_candidates(self) -> Iterator[_Candidate]:
        seen: set[tuple[Path, bool]] = set()
        for location in locations_read(self.context):
            for path, place in fill_all(location.template, self.machine.places):
                found: tuple[Path, ...] = (path,)
                if path.name.startswith(ANY_NAME):
                    found, wrong = list_matching(path.parent, path.suffix)
                    if wrong:
                        warning = ConfigWarning(path=str(path.parent), key="", reason=wrong)
                        self.warnings.append(warning)
                    moved = (each for each in self.moved.files if each.parent == path.parent)
                    matching = (each for each in moved if each.name.endswith(path.suffix))
                    found = tuple(sorted({*found, *matching}))
                for file in found:
                    # A user's directory may be the working directory, too.
                    identity = (file, location.dialect.per_project)
                    if identity not in seen:
                        seen.add(identity)
                        yield _Candidate(location=location, path=file, place=place)

    def survey(self) -> ConfigurationSurvey:
        cwd = self.context.cwd
        above = (cwd, *cwd.parents)
        if self.machine.project.root in above:
            above = above[: above.index(self.machine.project.root) + 1]
        templates = (row.template for row in locations_read(self.context))
        patterns = (
            each.partition(ANY_NAME)[0] + ANY_NAME for each in templates if ANY_NAME in each
        )
        listed = [path.parent for each in patterns for path in fill(each, self.machine.places)]
        files = dict.fromkeys(candidate.path for candidate in self._candidates)
        files.update(dict.fromkeys((*decision_files(self.machine.places), *self.moved.read)))
        files.update(dict.fromkeys(filter(None, map(_replacement, self._candidates))))
        around = (cwd, *(place / ".git" for place in above))
        return ConfigurationSurvey(
            project=self.machine.project,
            files=tuple(files),
            listed=tuple(listed),
            around=tuple(each for each in around if each not in listed),
        )

    @cached_property
    def rules(self) -> Rules:
        """The decisions in settings, approvals and clients' lists; reads those files."""
        for at, each in enumerate(self._candidates):
            row, path = each.location, each.path
            unread = self.reader.is_absent(path) and path not in self.moved.files
            if row.id and not (unread or row.in_project) and is_in_project(path, self.machine):
                # A user's file within the project belongs to the project.
                row = replace(row, scope="project")
                self._candidates[at] = replace(each, location=row)
        context, reader, machine = self.context, self.reader, self.machine
        files = [(each.location, each.path) for each in self._candidates]
        return Rules(
            context=context,
            approvals=read_claude_approvals(reader, machine),
            trusting_clients=trusting_clients(reader, machine, locations_read(context)),
            restrictions=read_restrictions(reader, machine, files),
        )

    def files(self) -> Iterator[tuple[Location, Parsed]]:
        room = MAX_SERVERS
        for candidate in self._candidates:
            location, path = candidate.location, candidate.path
            if location.in_project and room <= 0:
                continue
            replacing = _replacement(candidate)
            if replacing and not self.reader.is_absent(path) and fingerprint(replacing)[1] != -1:
                continue
            parsed = self._parse(candidate, most=room if location.in_project else MAX_SERVERS)
            if location.in_project:
                room -= len(parsed.entries)
            yield location, parsed
            if (file := self.moved.files.get(path)) is not None:
                yield replace(location, moved=True), self._parse(candidate, file)

    def _parse(
        self, candidate: _Candidate, kept: MovedFile | None = None, most: int = MAX_SERVERS
    ) -> Parsed:
        """Return the servers of a file, or those moved from it behind the bridge."""
        location, path, reader = candidate.location, candidate.path, self.reader
        format = location.format
        if format == "by suffix":
            format = "toml" if path.suffix.lower() == ".toml" else "json"
        document = reader.document(path, format, in_project=location.in_project)
        around = None
        if kept is not None:
            around, document = document, reader.document(kept.store, format)
        if document is None:
            # Only the file that the user named has no source.
            if not location.id and kept is None and reader.is_absent(path):
                reader.warn(path, ABSENT)
            return Parsed()
        if location.holds == "plugins":
            # A repository may have written a list of plugins within the project.
            if location.in_project:
                return Parsed()
            found = [
                parse_document(servers, self._entry_context(candidate, file))
                for file, servers in plugin_servers(document, path.parent, reader, self.machine)
            ]
            return Parsed(
                entries=tuple(entry for each in found for entry in each.entries),
                warnings=tuple(warning for each in found for warning in each.warnings),
            )
        if location.holds == "extension":
            separator, cwd = self._separator, self.context.cwd
            document = extension_servers(document, path, reader, cwd=cwd, separator=separator)
        setting = self._entry_context(candidate, path, kept)
        return parse_document(document, setting, self.machine.project.keys, most, around)

    def _entry_context(
        self, candidate: _Candidate, path: Path, kept: MovedFile | None = None
    ) -> EntryContext:
        location, context = candidate.location, self.context
        # The bridge reads files that a project's file names only if its servers may run.
        trusted = not location.in_project or context.project_servers != "none"
        asks = kept is None and location.in_project and context.project_servers == "approved"

        def may_open_files(name: str, written: str) -> bool:
            return not self.rules.refusal(self.rules.definition(name, str(path), written), location)

        here = candidate.place if location.in_project else self.machine.project.root or context.cwd
        variables = Variables(
            environ=context.environ,
            home=str(context.home),
            workspace=str(here),
            directory=str(path.parent),
            separator=self._separator,
            read=self.reader.reference if trusted else no_file,
        )
        return EntryContext(
            source=Source(
                client=location.client,
                scope=location.scope,
                path=str(path if kept is None else kept.store),
                key="",
                moved_from="" if kept is None else str(path),
            ),
            dialect=location.dialect,
            variables=variables,
            may_open_files=may_open_files if asks else None,
        )

    @property
    def _separator(self) -> str:
        return "\\" if self.context.platform == "win32" else "/"


def locations_read(context: DiscoveryContext) -> tuple[Location, ...]:
    named = {name.removeprefix("-") for name in context.sources}
    without = any(name.startswith("-") for name in context.sources)
    rows = (row for row in LOCATIONS if context.platform in row.platforms)
    return tuple(row for row in rows if not (row.id and named) or (row.id in named) is not without)


def _unknown_sources(sources: Iterable[str], place: str) -> Iterator[ConfigWarning]:
    for name in sources:
        bare = name.removeprefix("-")
        if bare not in SOURCE_IDS:
            near = parsers.nearest(bare, SOURCE_IDS)
            guess = f"did you mean {near}? " if near else ""
            reason = f'"{shown(bare)}" is no source; {guess}known are {", ".join(SOURCE_IDS)}'
            yield ConfigWarning(path=place, key="", reason=reason, own=True)


class _Seen(NamedTuple):
    """A stamp, and the state of the few paths that change with any path of its survey."""

    stamp: Stamp
    state: Stamp
    nearest: tuple[Path, ...]
    around: tuple[Path, ...]


class Watch:
    """Computes the stamp of `ConfigurationSurvey` in microseconds, mostly without a survey.

    The stamp stays valid while no path of the survey, and no directory of a missing path, changes.
    Only the identity of directories that delimit the project counts. After a change within the
    last second the stamp is always computed again, since equal times may hide another change.
    """

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # A single value, so that its parts match even if two threads survey at once.
        self._seen: _Seen | None = None
        # Files that the configuration names, as they were when it was read.
        self._references: dict[Path, Fingerprint | None] = {}
        self.surveys = 0

    def add_references(self, references: tuple[Path, ...]) -> None:
        if references != tuple(self._references):
            # A change within the last second may be later than the reading.
            settled = _state((*references, *map(_nearest, references)), ())
            self._references = {path: fingerprint(path) if settled else None for path in references}
            self._seen = None

    def stamp(self) -> Stamp:
        seen = self._seen
        if seen and seen.state and _state(seen.nearest, seen.around) == seen.state:
            return seen.stamp
        self.surveys += 1
        found = survey(self._context)
        paths = (*found.listed, *found.files, *self._references)
        nearest = tuple(dict.fromkeys(map(_nearest, paths)))
        # Before the stamp, so that the next comparison detects a change in between.
        state = _state(nearest, found.around)
        known = self._references.values()
        changed = (each for each in map(fingerprint, self._references) if each not in known)
        stamp = (*found.stamp(), *changed)
        self._seen = _Seen(stamp, state, nearest, found.around)
        return stamp


def watched_paths(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the directories to watch for changes, without their subdirectories.

    Clients save a file by replacing it, which a watch on the file would miss. A missing directory
    is replaced by its nearest existing parent. Link targets are included.
    """
    found: dict[Path, None] = {}
    for path in (*survey(context).paths, *references):
        for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
            directory = place
            while not _is_directory(directory) and directory != directory.parent:
                directory = directory.parent
            found[directory] = None
            if directory == place:
                # A replaced directory changes its parent.
                found[place.parent] = None
    return tuple(found)


def _state(paths: Iterable[Path], around: Iterable[Path]) -> Stamp:
    """Return the state of paths; empty if it could hide another change."""
    state = [*map(fingerprint, paths)]
    # Some file systems store times in steps of a second.
    recent = time.time_ns() - 1_000_000_000
    if any(each[1] > recent for each in state):
        return ()
    return (*state, *map(_identity, around))


def _nearest(path: Path) -> Path:
    name = str(path)
    # Strings, since Path's methods take ten times as long for hundreds of paths.
    while not os.path.lexists(name) and name != os.path.dirname(name):  # noqa: PTH120
        name = os.path.dirname(name)  # noqa: PTH120
    return Path(name)


def _is_directory(path: str | Path) -> bool:
    # Unlike `Path.is_dir`, this never raises.
    return os.path.isdir(path)  # noqa: PTH112


def _identity(path: Path) -> Fingerprint:
    found = fingerprint(path)
    return (found[0], 0, 0, *found[3:5], 0) if _is_directory(path) else found
