"""A configuration file's bytes to servers, skipped entries and warnings: pure.

Owns the shape of a file above its entries: which keys hold servers, whose project is meant, files
that are one bare entry. Never raises on what a file says: everything wrong becomes a
`SkippedServer` or a `ConfigWarning`, and the rest still loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from bridge.discovery.clients import Dialect
from bridge.discovery.documents import MalformedError, decode, kind, repeated_keys
from bridge.discovery.entries import Setting, read_entry
from bridge.discovery.report import ConfigWarning, SkippedServer, dotted, printable
from bridge.model import ServerSpec

MAX_SERVERS_PER_FILE = 1000
"""Far more than anyone runs; a file with more is not a list of servers."""

PROJECTS_KEY = "projects"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is known of a file before it is read.

    Attributes:
        path: The file, absolute.
        environ, home: What variables and `~` stand for.
        toml: Whether the text is TOML rather than JSON.
        projects: For a dialect with servers per project, the directories that are this project, the
            one that counts most first.
    """

    client: str
    scope: str
    path: str
    dialect: Dialect
    environ: Mapping[str, str]
    home: str
    toml: bool = False
    projects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """All that one file says, in its own order."""

    entries: tuple[ServerSpec | SkippedServer, ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()

    @property
    def servers(self) -> tuple[ServerSpec, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, ServerSpec))

    @property
    def skipped(self) -> tuple[SkippedServer, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, SkippedServer))


def parse_config(raw: bytes, origin: Origin) -> Parsed:
    """What a file's bytes mean."""
    try:
        document = decode(raw, toml=origin.toml)
    except MalformedError as error:
        return Parsed(
            warnings=(ConfigWarning(path=origin.path, key="", reason=str(error), unread=True),)
        )
    return parse_document(document, origin)


def parse_document(document: object, origin: Origin) -> Parsed:
    """What a decoded file means."""
    warnings: list[ConfigWarning] = []

    def warn(key: str, reason: str) -> None:
        warnings.append(ConfigWarning(path=origin.path, key=key, reason=reason))

    if not isinstance(document, Mapping):
        warn("", f"the file must hold an object, not {kind(document)}")
        return Parsed(warnings=tuple(warnings))
    if sentence := repeated_keys(document):
        warn("", sentence)
    setting = Setting(
        client=origin.client,
        scope=origin.scope,
        path=origin.path,
        dialect=origin.dialect,
        environ=origin.environ,
        home=origin.home,
    )
    entries: list[ServerSpec | SkippedServer] = []
    tables = list(_server_tables(document, origin))
    if not tables and origin.dialect.servers_expected:
        known = ", ".join(origin.dialect.server_keys)
        bare = "; nor a command or url" if origin.dialect.bare_server else ""
        warn("", f"it has none of the keys that hold servers ({known}){bare}")
    for prefix, table in tables:
        if not isinstance(table, Mapping):
            warn(prefix, f"must be an object of servers, not {kind(table)}")
            continue
        if prefix and (sentence := repeated_keys(table)):
            warn(prefix, sentence)
        for name, value in table.items():
            if len(entries) == MAX_SERVERS_PER_FILE:
                warn(prefix, f"only the first {MAX_SERVERS_PER_FILE} servers are read")
                break
            key = f"{prefix}.{dotted(name)}" if prefix else ""
            entry, said = read_entry(name, value, key=key, setting=setting)
            entries.append(entry)
            warnings.extend(said)
    return Parsed(entries=tuple(entries), warnings=tuple(warnings))


def project_entries(
    document: object, projects: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The objects that Claude Code's state keeps for these directories, each with its key."""
    table = document.get(PROJECTS_KEY) if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping):
        return
    # Claude Code writes forward slashes on every platform.
    named = {_slashed(key): key for key in table}
    for directory in projects:
        key = named.get(_slashed(directory))
        if key is not None and isinstance(table[key], Mapping):
            yield key, table[key]


def _server_tables(document: Mapping[str, object], origin: Origin) -> Iterator[tuple[str, object]]:
    """The objects that map names to entries, each with its dotted place in the file."""
    dialect = origin.dialect
    if dialect.per_project:
        for project, state in project_entries(document, origin.projects):
            present = [key for key in dialect.server_keys if state.get(key)]
            for key in present:
                yield f"{PROJECTS_KEY}.{printable(project)}.{key}", state[key]
            if present:
                return
        return
    present = [key for key in dialect.server_keys if key in document]
    for key in present:
        yield key, document[key]
    if not present and dialect.bare_server and ("command" in document or "url" in document):
        yield "", {PurePath(origin.path).stem: document}


def _slashed(directory: str) -> str:
    return directory.replace("\\", "/").rstrip("/")
