"""Parses a decoded configuration file into servers, skipped entries and warnings: pure.

Owns the structure above the entries. Never raises: mistakes become `SkippedServer` or
`ConfigWarning`, and the remaining entries still load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from bridge.discovery.dialect import SPELLINGS, Dialect
from bridge.discovery.documents import kind
from bridge.discovery.entries import looks_like_server, read_entry, unread_entry
from bridge.discovery.fields import EntryContext
from bridge.discovery.report import ConfigWarning, SkippedServer, dotted_key, printable
from bridge.discovery.variables import InsertBudget
from bridge.guest.schema.schemas import as_list, as_mapping
from bridge.model import ServerSpec

MAX_SERVERS = 500  # Per user file, and for all project files: a repository may define any number.

MAX_WARNINGS_PER_FILE = 100
"""Each read of a file logs its warnings, so a repository's file could fill the disk."""

PROJECTS_KEY = "projects"


@dataclass(frozen=True, kw_only=True)
class Parsed:
    entries: tuple[ServerSpec | SkippedServer, ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()


def parse_document(
    document: object,
    file: EntryContext,
    projects: tuple[str, ...] = (),
    most: int = MAX_SERVERS,
    around: object = None,
) -> Parsed:
    """Return at most `most` entries, and the warnings, of a decoded file.

    `projects` are this project's directories, strongest first, for a dialect with servers per
    project. `around` has the inputs and the on/off lists, if it is not the document itself.
    """
    warnings: list[ConfigWarning] = []

    def warn(key: str, reason: str) -> None:
        warnings.append(ConfigWarning(path=file.source.path, key=key, reason=reason))

    if not isinstance(document, Mapping):
        warn("", f"the file must hold an object, not {kind(document)}")
        return Parsed(warnings=tuple(warnings))
    entries: list[ServerSpec | SkippedServer] = []
    tables = list(_server_tables(document, file, projects))
    entries += _find_misplaced(document, file)
    if not tables and not entries and file.dialect.servers_expected:
        known = ", ".join(file.dialect.server_keys)
        bare = "; nor a command or url" if file.dialect.bare_server else ""
        warn("", f"it has none of the keys that hold servers ({known}){bare}")
    for prefix, table in tables:
        context = _with_inputs(file, around or document, prefix)
        if not isinstance(table, Mapping) and not (file.dialect.listed and isinstance(table, list)):
            wanted = "a list" if file.dialect.listed else "an object"
            warn(prefix, f"must be {wanted} of servers, not {kind(table)}")
            continue
        for name, key, value in _named_entries(prefix, table):
            if len(entries) >= most:
                warn(prefix, f"only the first {MAX_SERVERS} servers are read")
                break
            off = _off_reason(name, around or document, file.dialect)
            entry, said = read_entry(name, value, key=key, context=context, off=off)
            entries.append(entry)
            warnings.extend(said)
    if len(warnings) > MAX_WARNINGS_PER_FILE:
        more = len(warnings) - MAX_WARNINGS_PER_FILE
        del warnings[MAX_WARNINGS_PER_FILE:]
        warn("", f"{more} more warnings about this file are left out")
    return Parsed(entries=tuple(entries), warnings=tuple(warnings))


def _find_misplaced(document: Mapping[str, object], file: EntryContext) -> Iterator[SkippedServer]:
    dialect, client = file.dialect, file.source.client
    for place in () if dialect.per_project else SPELLINGS["server_keys"]:
        table = document.get(place) or lookup(document, place)
        if place in dialect.server_keys or not isinstance(table, Mapping):
            continue
        reason = (
            f'{client} does not read "{place}"; put it under "{"".join(dialect.server_keys[:1])}"'
        )
        if dialect.elsewhere:
            reason = f"{client} reads no servers from this file; put it into {dialect.elsewhere}"
        for name, value in list(table.items())[:MAX_SERVERS]:
            if looks_like_server(value):
                key = f"{place}.{dotted_key(name)}"
                yield replace(unread_entry(name, value, key, file), reason=reason)


def _with_inputs(context: EntryContext, document: object, prefix: str) -> EntryContext:
    parent = prefix.rpartition(".")[0]
    described = lookup(document, f"{parent}.inputs" if parent else "inputs")
    inputs: dict[str, str | None] = {}
    for item in map(as_mapping, as_list(described) if context.dialect.inputs else ()):
        if isinstance(item.get("id"), str):
            default = item.get("default")
            inputs[item["id"]] = default if isinstance(default, str) else None
    variables = replace(context.variables, inputs=inputs, budget=InsertBudget())
    return replace(context, variables=variables)


def _named_entries(
    prefix: str, table: Mapping[str, object] | list[object]
) -> Iterator[tuple[str, str, object]]:
    if isinstance(table, list):
        for at, value in enumerate(table):
            name = as_mapping(value).get("name")
            yield name if isinstance(name, str) else "", f"{prefix}[{at}]", value
        return
    for name, value in table.items():
        yield name, f"{prefix}.{dotted_key(name)}" if prefix else "", value


def _off_reason(name: str, document: object, dialect: Dialect) -> str:
    if dialect.gates is None:
        return ""
    allowed, excluded = (lookup(document, place) for place in dialect.gates)
    if isinstance(excluded, list) and name in excluded:
        return f"turned off by {dialect.gates[1]}"
    if isinstance(allowed, list) and allowed and name not in allowed:
        return f"turned off by {dialect.gates[0]}, which does not name it"
    return ""


def lookup(document: object, place: str) -> object:
    """Return the value at a dotted key; None if absent."""
    for part in place.split("."):
        document = as_mapping(document).get(part)
    return document


def project_entries(
    document: object, projects: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield key and object of these directories in Claude Code's state file."""
    table = as_mapping(lookup(document, PROJECTS_KEY))
    # Claude Code writes forward slashes on every platform.
    named = {_forward_slashes(key): key for key in table}
    for directory in projects:
        key = named.get(_forward_slashes(directory))
        if key is not None and isinstance(table[key], Mapping):
            yield key, table[key]


def _server_tables(
    document: Mapping[str, object], file: EntryContext, projects: tuple[str, ...]
) -> Iterator[tuple[str, object]]:
    dialect = file.dialect
    if dialect.per_project:
        for project, state in project_entries(document, projects):
            present = [key for key in dialect.server_keys if state.get(key)]
            for key in present:
                yield f"{PROJECTS_KEY}.{printable(project)}.{key}", state[key]
            if present:
                return
        return
    taken: dict[str, str] = {}
    for place in dialect.server_keys:
        outer, _, inner = ("", "", place) if dialect.flat_keys else place.rpartition(".")
        holder = lookup(document, outer) if outer else document
        if not isinstance(holder, Mapping) or holder.get(inner) is None:
            continue
        table = holder[inner]
        if outer and not (
            isinstance(table, Mapping) and all(isinstance(item, Mapping) for item in table.values())
        ):
            # This is a server whose name equals another version's key of servers.
            continue
        taken[outer] = inner
        if place in taken and isinstance(table, Mapping):
            table = {key: value for key, value in table.items() if key != taken[place]}
        yield place, table
    if not taken and dialect.bare_server and ("command" in document or "url" in document):
        yield "", {PurePath(file.source.path).stem: document}


def _forward_slashes(directory: str) -> str:
    return directory.replace("\\", "/").rstrip("/")
