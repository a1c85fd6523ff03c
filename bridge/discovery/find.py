"""Every MCP server that this user has: the files read, merged, with where each came from.

Owns the I/O of discovery and the order of its steps. Where files are is `clients.py`'s business,
what they mean `parse.py`'s, which definition wins `merge.py`'s. Discovery never fails: what cannot
be used is in `Discovery.skipped` or `Discovery.warnings`.

All of it is synchronous and bounded; a caller on an event loop runs it in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bridge.discovery.approvals import TRUSTED_KEY, Approvals, join, read_approvals
from bridge.discovery.clients import (
    APPROVAL_FILES,
    LIMIT_FILES,
    TRUST_FILES,
    Format,
    Location,
    Platform,
)
from bridge.discovery.consents import Consent, Consents
from bridge.discovery.documents import MalformedError, decode, kind, size_limit
from bridge.discovery.env_files import MAX_ENV_FILE_BYTES
from bridge.discovery.files import (
    ABSENT,
    Fingerprint,
    fingerprint,
    is_absent,
    list_matching,
    read_regular,
)
from bridge.discovery.forbidden import (
    CLAUDE,
    GEMINI,
    OFF_KEY,
    Forbidden,
    Lists,
    gemini_lists,
    gemini_switched_off,
    join_lists,
    names_off,
    read_lists,
)
from bridge.discovery.merge import ProjectServers, Rules, merge
from bridge.discovery.parse import PROJECTS_KEY, Origin, Parsed, parse_document, project_entries
from bridge.discovery.places import Places, Project, fill, find_project, places_for, spots
from bridge.discovery.report import ConfigWarning, ProposedServer, SkippedServer, printable
from bridge.discovery.sources import locations_read, unknown_sources
from bridge.model import ServerSpec

__all__ = [
    "ConfigWarning",
    "Discovery",
    "DiscoveryContext",
    "ProposedServer",
    "SkippedServer",
    "Stamp",
    "current_stamp",
    "discover",
]

_ANY_NAME = "*"
_CLAUDE_STATE = "{claude_state}/.claude.json"
_GEMINI_SWITCHES = "{gemini}/mcp-server-enablement.json"
_GEMINI_FORMAT: Format = "json with comments"

MAX_REFERENCES = 64
"""Files that configurations name, such as `envFile`; a table that names more is no table."""

MAX_PROJECT_FILE_BYTES = 1024 * 1024
"""Of one file of the working directory. Anybody may have written it, and as a value it takes thirty
times its size."""

MAX_PROJECT_BYTES = 4 * 1024 * 1024
"""Of all files of the working directory together; strongest first, and what is beyond is left."""

Stamp = tuple[str | Fingerprint, ...]


@dataclass(frozen=True, kw_only=True)
class DiscoveryContext:
    """For whom and from where servers are looked for.

    Attributes:
        home, cwd: Absolute.
        extra_config: The file that `MCP_SERVERS_CONFIG` names; `~` and relative paths are fine.
        allow_self: Whether entries that start this bridge are kept.
        project_servers: Whether servers that files of the working directory define are used:
            only those "approved" exactly as they are, "all", or "none".
        consents: What was approved.
        system_root: Where the system's own configuration directories start.
        sources: Which clients' files are read: names of `clients.SOURCE_IDS`, or names with a "-"
            in front for all but those; all if empty.
        exposed: Directories that programs may write to: no file in them defines a server, since
            that would be a command for this machine.
    """

    home: Path
    cwd: Path
    platform: Platform
    environ: Mapping[str, str] = field(repr=False)
    extra_config: Path | None = None
    allow_self: bool = False
    project_servers: ProjectServers = "approved"
    consents: Consents = field(default_factory=Consents)
    system_root: Path = Path("/")
    sources: tuple[str, ...] = ()
    exposed: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What was found.

    Attributes:
        servers: To be used, strongest file first; names are unique.
        skipped: Definitions that are not used, each with the reason.
        proposed: Definitions of the project that wait for a person's approval.
        first_seen: Approvals of clients that were never seen before, to be kept.
        warnings: What the owners of the files should mend.
        stamp: Equal to `current_stamp` for as long as no file has changed.
        references: Files that the configurations name and that were read for them, or would have
            been; a stamp does not know them.
    """

    servers: tuple[ServerSpec, ...]
    skipped: tuple[SkippedServer, ...]
    warnings: tuple[ConfigWarning, ...]
    stamp: Stamp
    references: tuple[Path, ...] = ()
    proposed: tuple[ProposedServer, ...] = ()
    first_seen: tuple[Consent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """One file to read, whether or not it is there.

    Attributes:
        place: Where its template starts: for a file of the project, the project's directory.
    """

    location: Location
    path: Path
    place: Path


def discover(context: DiscoveryContext) -> Discovery:
    """Read every known configuration and merge what they say."""
    project, places = _survey(context)
    reader = _Reader(context.exposed)
    candidates = list(_candidates(context, places, reader.warnings))
    # Before any read, so that a change during one is noticed by the next comparison.
    stamp, absent = _stamp(project, places, candidates)
    reader.leave_out(absent)
    approvals = _approvals(reader, places, project)
    claude = [each for each in candidates if each.location.id == CLAUDE]
    managed = [each.path for each in claude if each.location.scope == "managed"]
    gemini = [
        each.path
        for each in candidates
        if each.location.id == GEMINI and not each.location.in_project
    ]
    rules = Rules(
        allow_self=context.allow_self,
        project_servers=context.project_servers,
        approvals=approvals,
        trusting=dict(_trusting(reader, places, project, context)),
        consents=context.consents,
        forbidden=_forbidden(reader, places, project, context.platform, managed, gemini),
        directory=os.path.realpath(context.cwd),
    )
    files = [
        (candidate.location, _parsed(candidate, reader, context, project, rules))
        for candidate in candidates
    ]
    merged = merge(files, rules)
    said = [warning for _, parsed in files for warning in parsed.warnings]
    about_sources = unknown_sources(context.sources)
    warnings = (*about_sources, *reader.warnings, *said, *_missing_directories(merged.servers))
    # One file may be read for several scopes, and says the same of itself each time.
    return Discovery(
        servers=merged.servers,
        skipped=merged.skipped,
        proposed=merged.proposed,
        first_seen=merged.first_seen,
        warnings=tuple(dict.fromkeys(warnings)),
        stamp=stamp,
        references=tuple(reader.references),
    )


def current_stamp(context: DiscoveryContext) -> Stamp:
    """A value that changes when any file that discovery reads, or could read, does.

    Nothing is opened but the one line that a worktree's `.git` is.
    """
    project, places = _survey(context)
    return _stamp(project, places, _candidates(context, places, []))[0]


def looked_at(context: DiscoveryContext) -> Iterator[Path]:
    """Every path on which a stamp depends, whether or not it is there."""
    cwd = context.cwd
    yield cwd
    project, places = _survey(context)
    for place in (cwd, *cwd.parents):
        yield place / ".git"
        if place == project.root:
            break
    for location in locations_read(context.sources, context.platform):
        for path in fill(location.template, places):
            yield path.parent if path.name.startswith(_ANY_NAME) else path
    yield from (candidate.path for candidate in _candidates(context, places, []))
    yield from _answer_files(places)


def _stamp(
    project: Project, places: Places, candidates: Iterable[_Candidate]
) -> tuple[Stamp, set[Path]]:
    """What tells one state of the files from another, and which of them are not there."""
    paths = [candidate.path for candidate in candidates]
    paths.extend(_answer_files(places))
    prints = {path: fingerprint(path) for path in dict.fromkeys(paths)}
    absent = {path for path, found in prints.items() if is_absent(found)}
    return (*project.keys, *prints.values()), absent


def _answer_files(places: Places) -> Iterator[Path]:
    """The files in which clients keep what the user approves and trusts."""
    templates = [_GEMINI_SWITCHES, *(file.template for file in APPROVAL_FILES)]
    templates += [file.template for file in TRUST_FILES]
    templates += [file.template for file in LIMIT_FILES]
    for template in templates:
        for path in fill(template, places):
            if path.name.startswith(_ANY_NAME):
                yield path.parent
                yield from list_matching(path.parent, path.suffix)[0]
            else:
                yield path


class _Reader:
    """Reads each file once, and gathers what is wrong with files as a whole."""

    def __init__(self, exposed: Iterable[Path] = ()) -> None:
        self._exposed = tuple(exposed)
        self.warnings: list[ConfigWarning] = []
        self.references: dict[Path, str | None] = {}
        self._documents: dict[Path, Mapping[str, object] | None] = {}
        self._project_room = MAX_PROJECT_BYTES
        self._absent: set[Path] = set()

    def leave_out(self, absent: Iterable[Path]) -> None:
        """Do not look for these again: most clients that are known are not installed."""
        self._absent.update(absent)
        self._documents.update(dict.fromkeys(absent))

    def document(
        self, path: Path, format: Format = "json", *, in_project: bool = False
    ) -> Mapping[str, object] | None:
        """A file's decoded value; None when there is none."""
        if path not in self._documents:
            self._documents[path] = self._read(path, format, in_project)
        return self._documents[path]

    def reference(self, name: str) -> str | None:
        """The text of a file that a configuration names; None when it cannot be had."""
        path = Path(name)
        if path not in self.references and len(self.references) < MAX_REFERENCES:
            raw = read_regular(path, limit=MAX_ENV_FILE_BYTES)
            self.references[path] = (
                None if isinstance(raw, str) else raw.decode("utf-8-sig", "replace")
            )
        return self.references.get(path)

    def is_absent(self, path: Path) -> bool:
        """Whether a file was seen not to be there."""
        return path in self._absent

    def demand(self, path: Path) -> None:
        """Warn about a file that somebody named and that is not there."""
        if path in self._absent:
            self._warn(path, ABSENT)

    def _read(self, path: Path, format: Format, in_project: bool) -> Mapping[str, object] | None:
        if self._is_exposed(path):
            self._warn(path, "it is not used: programs may write to the directory that it is in")
            return None
        limit = size_limit(format)
        if in_project:
            limit = min(limit, MAX_PROJECT_FILE_BYTES, self._project_room)
        raw = read_regular(path, limit=limit)
        if isinstance(raw, str):
            if raw == ABSENT:
                self._absent.add(path)
            else:
                self._warn(path, raw)
            return None
        if in_project:
            self._project_room -= len(raw)
        try:
            value = decode(raw, format)
        except MalformedError as error:
            self._warn(path, str(error))
            return None
        if not isinstance(value, Mapping):
            self._warn(path, f"the file must hold an object, not {kind(value)}")
            return None
        return value

    def _is_exposed(self, path: Path) -> bool:
        if not self._exposed:
            return False
        places = (path, Path(os.path.realpath(path)))
        return any(place.is_relative_to(each) for place in places for each in self._exposed)

    def _warn(self, path: Path, reason: str) -> None:
        unread = reason != ABSENT
        self.warnings.append(ConfigWarning(path=str(path), key="", reason=reason, unread=unread))


def _survey(context: DiscoveryContext) -> tuple[Project, Places]:
    project = find_project(context.cwd)
    places = places_for(
        platform=context.platform,
        home=context.home,
        environ=context.environ,
        system_root=context.system_root,
        extra=context.extra_config,
        project=project,
    )
    return project, places


def _candidates(
    context: DiscoveryContext, places: Places, warnings: list[ConfigWarning]
) -> Iterator[_Candidate]:
    """Every file of the table, strongest first; files of a directory only if they are there."""
    seen: set[tuple[Path, bool]] = set()
    for location in locations_read(context.sources, context.platform):
        for path, place in spots(location.template, places):
            found: tuple[Path, ...] = (path,)
            if path.name.startswith(_ANY_NAME):
                found, wrong = list_matching(path.parent, path.suffix)
                if wrong:
                    warnings.append(ConfigWarning(path=str(path.parent), key="", reason=wrong))
            for file in found:
                # The working directory may be one of the user's own configuration directories.
                identity = (file, location.dialect.per_project)
                if identity not in seen:
                    seen.add(identity)
                    found_at = location
                    if location.id and not location.in_project and _brought_along(file, places):
                        found_at = replace(location, in_project=True)
                    yield _Candidate(location=found_at, path=file, place=place)


def _brought_along(path: Path, places: Places) -> bool:
    """Tell whether a file of the user's lies in the project, as a relative variable has it.

    Not where the project has the user's home in it, as for who keeps that in a repository.
    """
    (home,), project = places["home"], places["project"]
    return any(path.is_relative_to(place) and not home.is_relative_to(place) for place in project)


def _parsed(
    candidate: _Candidate,
    reader: _Reader,
    context: DiscoveryContext,
    project: Project,
    rules: Rules,
) -> Parsed:
    location, path = candidate.location, candidate.path
    format = location.format
    if format == "by suffix":
        format = "toml" if path.suffix.lower() == ".toml" else "json"
    document = reader.document(path, format, in_project=location.in_project)
    if document is None:
        if location.required:
            reader.demand(path)
        return Parsed()
    # What a project's file names is read only where its servers may run.
    trusted = not location.in_project or context.project_servers != "none"
    admits = None
    if location.in_project and context.project_servers == "approved":
        admits = partial(_admits, rules, location, str(path))
    origin = Origin(
        client=location.client,
        scope=location.scope,
        path=str(path),
        dialect=location.dialect,
        environ=context.environ,
        home=str(context.home),
        workspace=str(candidate.place if location.in_project else project.root or context.cwd),
        format=format,
        read=reader.reference if trusted else _nothing,
        separator="\\" if context.platform == "win32" else "/",
        projects=project.keys,
        admits=admits,
    )
    return parse_document(document, origin)


def _admits(rules: Rules, location: Location, path: str, name: str, written: str) -> bool:
    return not rules.refusal(rules.definition(name, path, written), location)


def _nothing(name: str) -> str | None:
    return None


def _approvals(reader: _Reader, places: Places, project: Project) -> Approvals:
    """What Claude Code's own lists say about this project's servers."""
    found: list[Approvals] = []
    trusted = False
    for file in APPROVAL_FILES:
        for path in fill(file.template, places):
            document = reader.document(path, in_project=file.grants != "always")
            if document is None:
                continue
            objects = [("", document)]
            if file.per_project:
                objects = [
                    (f"{PROJECTS_KEY}.{key}", state)
                    for key, state in project_entries(document, project.keys)
                ]
                trusted = any(state.get(TRUSTED_KEY) is True for _, state in objects)
                trusted = trusted and not _brought_along(path, places)
            may_approve = file.grants == "always" and not _brought_along(path, places)
            may_approve = may_approve or (file.grants == "trusted" and trusted)
            for prefix, lists in objects:
                one, said = read_approvals(
                    lists, path=str(path), prefix=prefix, may_approve=may_approve
                )
                found.append(one)
                reader.warnings.extend(said)
    return join(found)


def _trusting(
    reader: _Reader, places: Places, project: Project, context: DiscoveryContext
) -> Iterator[tuple[str, str]]:
    """Clients that the user has told to trust this project, by their source."""
    read = {row.id for row in locations_read(context.sources, context.platform)}
    for file in TRUST_FILES:
        for path in fill(file.template, places) if file.id in read else ():
            if _brought_along(path, places):
                continue
            document = reader.document(path, file.format)
            if document is not None and file.trusts(document, project.keys):
                yield file.id, file.client


def _forbidden(
    reader: _Reader,
    places: Places,
    project: Project,
    platform: Platform,
    managed: Iterable[Path],
    gemini: Iterable[Path],
) -> Forbidden:
    """What Claude Code's settings and state say about which servers may be used.

    Args:
        managed: Where the company's own file of servers may be.
        gemini: The files of Gemini CLI that are no project's.
    """
    lists: list[Lists] = []
    unreadable = ""
    for file in LIMIT_FILES:
        if platform not in file.platforms:
            continue
        for path in fill(file.template, places):
            found: tuple[Path, ...] = (path,)
            if path.name.startswith(_ANY_NAME):
                found, wrong = list_matching(path.parent, path.suffix)
                unreadable = unreadable or (str(path.parent) if wrong else "")
            for each in found:
                document = reader.document(each)
                if document is not None:
                    one, said = read_lists(document, path=str(each), managed=file.managed)
                    lists.append(one)
                    reader.warnings.extend(said)
                elif file.managed and not reader.is_absent(each):
                    unreadable = unreadable or str(each)
    exclusive = next((str(path) for path in managed if not reader.is_absent(path)), "")
    limits = join_lists(lists, exclusive=exclusive, unreadable=unreadable)
    return replace(limits, **_switched_off(reader, places, project, gemini))


def _switched_off(
    reader: _Reader, places: Places, project: Project, gemini: Iterable[Path]
) -> dict[str, Any]:
    """What clients keep of servers that are switched off, apart from the servers."""
    claude: dict[str, str] = {}
    for path in fill(_CLAUDE_STATE, places):
        for _, state in project_entries(reader.document(path), project.keys):
            by = f"{OFF_KEY} in {printable(str(path))}"
            claude.update(dict.fromkeys(names_off(state), by))
    off: dict[str, str] = {}
    only: tuple[tuple[frozenset[str], str], ...] = ()
    for path in gemini:
        excluded, allowed = gemini_lists(reader.document(path, _GEMINI_FORMAT) or {}, str(path))
        off |= excluded
        only += allowed
    for path in fill(_GEMINI_SWITCHES, places):
        off |= gemini_switched_off(reader.document(path, _GEMINI_FORMAT) or {}, str(path))
    return {"off": {CLAUDE: claude, GEMINI: off}, "only": {GEMINI: only}}


def _missing_directories(servers: tuple[ServerSpec, ...]) -> Iterator[ConfigWarning]:
    """Servers that cannot start as configured; kept, since a directory may yet be made."""
    for spec in servers:
        if spec.cwd is not None and not _is_directory(spec.cwd):
            key = f"{spec.source.key}.cwd" if spec.source.key else "cwd"
            reason = "this directory does not exist, so the server will not start"
            yield ConfigWarning(path=spec.source.path, key=key, reason=reason)


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False
