"""Reads which servers the user has approved, trusted, forbidden or switched off in other clients.

Owns which files are read, and that a project's files never decide for the user. `user_lists.py`
interprets the lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bridge.discovery.clients import APPROVAL_FILES, CLIENTS, LIMIT_FILES, TRUST_FILES
from bridge.discovery.dialect import Format, Location, Platform
from bridge.discovery.files import FileReader, list_matching
from bridge.discovery.locations import Places, Project, fill
from bridge.discovery.parser import PROJECTS_KEY, project_entries
from bridge.discovery.plugins import ENABLEMENT_FILE
from bridge.discovery.report import printable
from bridge.discovery.user_lists import (
    AMP,
    CLAUDE,
    GEMINI,
    OFF_KEY,
    TRUSTED_KEY,
    Approvals,
    Restrictions,
    amp_rules,
    gemini_lists,
    gemini_switched_off,
    names_off,
)

ANY_NAME = "*"
"""A template whose last part begins so matches every file of its directory with that suffix."""

_GEMINI_SWITCHES = "{gemini}/mcp-server-enablement.json"
_EXTENSION_SWITCHES = (
    f"{{gemini}}/extensions/{ENABLEMENT_FILE}",
    f"{{qwen}}/extensions/{ENABLEMENT_FILE}",
)
_GEMINI_FORMAT: Format = "json with comments"


def decision_files(places: Places) -> Iterator[Path]:
    """Yield the files in which clients keep the user's approvals and trusted directories."""
    templates = [
        _GEMINI_SWITCHES,
        *_EXTENSION_SWITCHES,
        *(file.template for file in APPROVAL_FILES),
    ]
    templates += [file.template for file in TRUST_FILES]
    templates += [file.template for file in LIMIT_FILES]
    for template in templates:
        for path in fill(template, places):
            if path.name.startswith(ANY_NAME):
                yield path.parent
                yield from list_matching(path.parent, path.suffix)[0]
            else:
                yield path


def is_in_project(path: Path, places: Places) -> bool:
    """Return whether one of the user's files is in the project, because a variable points there.

    False if the project contains the user's home directory, as when that is a repository.
    """
    (home,), project = places["home"], places["project"]
    return any(_is_below(path, place) and not _is_below(home, place) for place in project)


def _is_below(path: Path, place: Path) -> bool:
    """Return whether a path is below `place`, as written or with links resolved."""
    real = Path(os.path.realpath(path))
    return path.is_relative_to(place) or real.is_relative_to(os.path.realpath(place))


def read_claude_approvals(reader: FileReader, places: Places, project: Project) -> Approvals:
    found = Approvals()
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
                found.trusted = trusted and not is_in_project(path, places)
            may_approve = file.grants == "always" and not is_in_project(path, places)
            may_approve = may_approve or (file.grants == "trusted" and found.trusted)
            for prefix, lists in objects:
                reader.warnings += found.add(
                    lists, path=str(path), prefix=prefix, may_approve=may_approve
                )
    return found


def trusting_clients(
    reader: FileReader, places: Places, project: Project, locations: Iterable[Location]
) -> Iterator[tuple[str, str]]:
    """Return the clients in which the user has trusted this project, by their source."""
    read = {row.id for row in locations}
    for file in TRUST_FILES:
        for path in fill(file.template, places) if file.id in read else ():
            if is_in_project(path, places):
                continue
            document = reader.document(path, file.format)
            if document is not None and file.trusts(document, project.keys):
                yield file.id, CLIENTS[file.id][0]


def read_restrictions(
    reader: FileReader,
    places: Places,
    project: Project,
    platform: Platform,
    managed: Iterable[Path],
    limiting: Mapping[str, Iterable[Path]],
) -> Restrictions:
    """Return which servers the settings and state of Claude Code and Gemini CLI forbid.

    Args:
        managed: Possible paths of the company's own file of servers.
        limiting: By source, the files of Gemini CLI, Qwen Code and Amp that belong to no project.
    """
    limits = Restrictions()
    for file in LIMIT_FILES:
        if platform not in file.platforms:
            continue
        for path in fill(file.template, places):
            found: tuple[Path, ...] = (path,)
            if path.name.startswith(ANY_NAME):
                found, wrong = list_matching(path.parent, path.suffix)
                limits.unreadable = limits.unreadable or (str(path.parent) if wrong else "")
            for each in found:
                document = reader.document(each)
                if document is not None:
                    reader.warnings += limits.add(document, path=str(each), managed=file.managed)
                elif file.managed and not reader.is_absent(each):
                    limits.unreadable = limits.unreadable or str(each)
    limits.exclusive = next((str(path) for path in managed if not reader.is_absent(path)), "")
    _add_disabled_servers(limits, reader, places, project, limiting)
    return limits


def _add_disabled_servers(
    limits: Restrictions,
    reader: FileReader,
    places: Places,
    project: Project,
    limiting: Mapping[str, Iterable[Path]],
) -> None:
    """Take in the lists that other clients keep in their files, and Claude Code in its state."""
    off, only = limits.off, limits.only
    off[CLAUDE] = {}
    for path in fill("{claude_state}/.claude.json", places):
        for _, state in project_entries(reader.document(path), project.keys):
            by = f"{OFF_KEY} in {printable(str(path))}"
            off[CLAUDE] |= dict.fromkeys(names_off(state), by)
    for path in limiting.get(AMP, ()):
        limits.amp += amp_rules(reader.document(path, "jsonc") or {}, str(path))
    for source, paths in limiting.items():
        off[source], only[source] = {}, []
        for path in paths:
            excluded, allowed = gemini_lists(reader.document(path, _GEMINI_FORMAT) or {}, str(path))
            off[source] |= excluded
            only[source] += allowed
    for path in fill(_GEMINI_SWITCHES, places):
        off[GEMINI] |= gemini_switched_off(reader.document(path, _GEMINI_FORMAT) or {}, str(path))
