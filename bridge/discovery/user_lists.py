"""Reads the user's decisions in other clients: approved, trusted, denied or disabled servers.

A project's files never decide for the user. Denials precede permissions. Claude Code's lists apply
to its own servers, but servers that its managed settings deny are denied in every client's files.
An unreadable list trusts nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import urlsplit

from bridge.discovery.clients import CLIENTS, MANAGED
from bridge.discovery.dialect import Format, Location
from bridge.discovery.documents import kind
from bridge.discovery.files import FileReader, list_matching
from bridge.discovery.locations import Machine, Places, fill
from bridge.discovery.parser import PROJECTS_KEY, project_entries
from bridge.discovery.report import ConfigWarning, printable
from bridge.guest.schema.schemas import as_list, as_mapping
from bridge.model import ServerSpec

ANY_NAME = "*"
"""A last path part that begins with it matches all files with that suffix."""

CLAUDE, GEMINI, QWEN, AMP = "claude-code", "gemini", "qwen", "amp"  # Names of sources.

ENABLED_KEY, DISABLED_KEY = "enabledMcpjsonServers", "disabledMcpjsonServers"
TRUSTED_KEY = "hasTrustDialogAccepted"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(kw_only=True)
class Approvals:
    """Approvals and rejections of a project's servers, by name folded as in Claude Code."""

    approved: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)  # Names, and the file that rejects each.
    all_approved: bool = False  # Whether every server of the project is approved.
    trusted: bool = False  # Whether the user trusts the folder, so that its own files may approve.

    def approves(self, name: str) -> bool:
        return self.all_approved or fold_name(name) in self.approved

    def add(
        self, lists: Mapping[str, object], *, path: str, prefix: str = "", may_approve: bool
    ) -> Iterator[ConfigWarning]:
        """Add the lists of one object (at the dotted `prefix`) of a file; yield warnings.

        Rejections always count, approvals only if the file `may_approve`.
        """
        names: dict[str, set[str]] = {ENABLED_KEY: set(), DISABLED_KEY: set()}
        for key in names:
            value = lists.get(key, [])
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                names[key] = set(map(fold_name, value))
                continue
            place = f"{prefix}.{key}" if prefix else key
            yield ConfigWarning(path=path, key=place, reason="must be a list of server names")
        for name in names[DISABLED_KEY]:
            self.rejected.setdefault(name, path)
        if may_approve:
            self.approved |= names[ENABLED_KEY]
            self.all_approved |= lists.get("enableAllProjectMcpServers") is True


def fold_name(name: str) -> str:
    return _UNSAFE.sub("_", name)


def codex_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    projects = as_mapping(document.get("projects"))
    levels = [as_mapping(projects.get(directory)).get("trust_level") for directory in directories]
    return "trusted" in levels and "untrusted" not in levels


def gemini_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    levels = {"TRUST_FOLDER": True, "TRUST_PARENT": True, "DO_NOT_TRUST": False}
    rules = [
        (os.path.dirname(path) if level == "TRUST_PARENT" else path, levels[level])  # noqa: PTH120
        for path, level in document.items()
        if isinstance(level, str) and level in levels
    ]
    return _nearest_trusts(rules, directories)


def vibe_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    lists = {"trusted": True, "untrusted": False}
    rules = [(path, trusts) for key, trusts in lists.items() for path in _names(document.get(key))]
    return _nearest_trusts(rules, directories)


def _nearest_trusts(rules: Iterable[tuple[str, bool]], directories: tuple[str, ...]) -> bool:
    here = PurePath(directories[-1] if directories else "")
    folders = ((PurePath(path), trusts) for path, trusts in rules)
    near = [(len(each.parts), not trusts) for each, trusts in folders if here.is_relative_to(each)]
    return bool(directories and near) and not max(near)[1]


DENIED_KEY = "deniedMcpServers"
ALLOWED_KEY = "allowedMcpServers"
OFF_KEY = "disabledMcpServers"

AMP_KEY = "amp.mcpPermissions"
ALLOWING_NONE = "Claude Code's settings, which allow none"

_FOLDED = frozenset({GEMINI, QWEN})
"""Sources whose lists of disabled servers ignore case."""


@dataclass(frozen=True, kw_only=True)
class ListedServer:
    """A server in a list: by name, whole command line or address."""

    path: str
    managed: bool
    name: str = ""
    command: tuple[str, ...] = ()
    url: str = ""

    def matches(self, spec: ServerSpec, *, denying: bool) -> bool:
        """Return whether this entry matches a server.

        A denial matches every spelling of an address. In a permission, a wildcard in the host does
        not match the path.
        """
        if self.name:
            return spec.name == self.name
        if self.command or spec.transport == "stdio":
            return spec.transport == "stdio" and (spec.command, *spec.args) == self.command
        pattern = _pattern(self.url, ".*" if denying else "[^/?#@]*")
        urls = (_normalize_url(spec.url), *[spec.url] * denying)
        return any(pattern.fullmatch(url) for url in urls)


@dataclass(kw_only=True)
class Restrictions:
    """All lists that forbid servers."""

    denied: list[ListedServer] = field(default_factory=list)
    # Lists of the only allowed servers, and whether each is managed.
    allowing: list[tuple[bool, list[ListedServer]]] = field(default_factory=list)
    only_managed: bool = False  # Whether only managed files may allow servers.
    # By source, disabled names and the reason.
    off: dict[str, dict[str, str]] = field(default_factory=dict)
    # By source, lists of the only enabled names and the reason.
    only: dict[str, list[tuple[frozenset[str], str]]] = field(default_factory=dict)
    exclusive: str = ""  # The managed file of servers, which Claude Code uses exclusively.
    unreadable: str = ""  # A managed file that cannot be read, and may forbid any server.
    # Amp's rules, strongest first, each with its file.
    amp: list[tuple[Mapping[str, object], str]] = field(default_factory=list)

    def add(
        self, document: Mapping[str, object], *, path: str, managed: bool
    ) -> Iterator[ConfigWarning]:
        """Add the lists of one of Claude Code's settings files; yield warnings."""
        found: dict[str, list[ListedServer]] = {}
        for key in (DENIED_KEY, ALLOWED_KEY):
            value = document.get(key, [])
            if not isinstance(value, list):
                reason = f"must be a list, not {kind(value)}"
                yield ConfigWarning(path=path, key=key, reason=reason)
                value = []
            found[key] = []
            for number, item in enumerate(value):
                entry = _parse_listed(item, path=path, managed=managed)
                if entry is None:
                    reason = "must have one of serverName, serverCommand and serverUrl"
                    yield ConfigWarning(path=path, key=f"{key}[{number}]", reason=reason)
                else:
                    found[key].append(entry)
        self.denied += found[DENIED_KEY]
        if ALLOWED_KEY in document:
            self.allowing.append((managed, found[ALLOWED_KEY]))
        self.only_managed |= managed and document.get("allowManagedMcpServersOnly") is True

    def reason(self, spec: ServerSpec, source: str) -> str:
        claude = source == CLAUDE
        for entry in self.denied:
            if (claude or entry.managed) and entry.matches(spec, denying=True):
                return f"denied by {DENIED_KEY} in {printable(entry.path)}"
        if source == AMP:
            matching = ((rule, path) for rule, path in self.amp if _amp_matches(rule, spec))
            rule, path = next(matching, ({}, ""))
            return f"rejected by {AMP_KEY} in {path}" if rule.get("action") == "reject" else ""
        if not claude:
            return ""
        if self.unreadable:
            return f"{printable(self.unreadable)}, which may forbid it, cannot be read"
        if self.exclusive and spec.source.scope != "managed":
            return f"Claude Code uses only the servers of {printable(self.exclusive)}"
        counting = [each for managed, each in self.allowing if managed or not self.only_managed]
        allowed = [entry for each in counting for entry in each]
        # Like Claude Code: if any entry has a command line, or address, names do not count.
        stdio = spec.transport == "stdio"
        exact = [each for each in allowed if (each.command if stdio else each.url)]
        named = exact or [each for each in allowed if each.name]
        if counting and not any(each.matches(spec, denying=False) for each in named):
            paths = ", ".join(dict.fromkeys(printable(each.path) for each in allowed))
            return f"not in {ALLOWED_KEY} of {paths or ALLOWING_NONE}"
        return ""

    def off_by(self, name: str, source: str) -> str:
        if by := self.off.get(source, {}).get(_fold(name) if source in _FOLDED else name):
            return by
        return next((by for names, by in self.only.get(source, ()) if name not in names), "")


def _amp_matches(rule: Mapping[str, object], spec: ServerSpec) -> bool:
    """Return whether a rule matches a server. An unsupported pattern matches if it rejects."""
    wanted = as_mapping(rule.get("matches"))
    words = (spec.command, *spec.args) if spec.transport == "stdio" else ()
    texts = {"command": (spec.command, " ".join(words)), "args": (" ".join(spec.args),)}
    texts = texts if words else {"url": (spec.url,)}
    for key, value in wanted.items():
        if key not in texts:
            return False
        if not isinstance(value, str) or re.fullmatch("/.*/", value) or value.count("*") > 4:
            return rule.get("action") == "reject"
        pattern = re.compile(".*".join(map(re.escape, value.split("*"))), re.DOTALL)
        if not any(pattern.fullmatch(text) for text in texts[key]):
            return False
    return bool(wanted)


def _names(listed: object) -> tuple[str, ...]:
    return tuple(each for each in as_list(listed) if isinstance(each, str))


def _parse_listed(item: object, *, path: str, managed: bool) -> ListedServer | None:
    keys = ("serverName", "serverCommand", "serverUrl")
    given = [(key, as_mapping(item)[key]) for key in keys if key in as_mapping(item)]
    listed = partial(ListedServer, path=path, managed=managed)
    match given:
        case [("serverName", str() as name)] if name:
            return listed(name=name)
        case [("serverCommand", [*words])] if words and all(isinstance(x, str) for x in words):
            return listed(command=tuple(words))
        case [("serverUrl", str() as url)] if url and url.count("*") <= 16:
            return listed(url=url)
        case _:
            return None


def _pattern(text: str, in_host: str) -> re.Pattern[str]:
    scheme, sep, rest = text.partition("://")
    host, slash, path = rest.partition("/") if sep else (scheme, "", "")
    if not sep:
        scheme = ""
    parts = ((scheme, in_host), (sep, ""), (host, in_host), (slash, ""), (path, ".*"))
    written = "".join(wild.join(map(re.escape, part.split("*"))) for part, wild in parts)
    return re.compile(written, re.IGNORECASE | re.DOTALL)


def _normalize_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    host = f"[{host}]" if ":" in host else host.rstrip(".")
    if port is not None and port != {"http": 80, "https": 443}.get(parts.scheme):
        host = f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{parts.path or '/'}{query}"


Trusts = Callable[[Mapping[str, object], tuple[str, ...]], bool]

TRUST_FILES: tuple[tuple[str, str, Format, Trusts], ...] = (
    ("codex", "{codex}/config.toml", "toml", codex_trusts),
    ("gemini", "{gemini_trust}", "json with comments", gemini_trusts),
    ("vibe", "{vibe}/trusted_folders.toml", "toml", vibe_trusts),
)

STATE_FILE = (
    "{claude_state}/.claude.json"  # Claude Code's, with lists below `projects.<directory>`.
)
USER_SETTINGS = "{claude_settings}/settings.json"
PROJECT_SETTINGS = ("{project}/.claude/settings.local.json", "{project}/.claude/settings.json")

APPROVAL_FILES: Mapping[str, Literal["always", "trusted", "never"]] = {
    STATE_FILE: "always",
    USER_SETTINGS: "always",
    PROJECT_SETTINGS[0]: "trusted",
    PROJECT_SETTINGS[1]: "never",
}
"""Claude Code's files with approvals of a project's servers, and whether they may approve.

Every rejection counts. A repository must not approve itself: the shared settings never approve, and
the local ones only if the user has trusted the directory in Claude Code.
"""

MANAGED_SETTINGS = tuple(f"{folder}/managed-settings.json" for folder, _ in MANAGED)
"""Claude Code's managed settings; a directory next to each may have more."""

_LIMIT_NAMES = ("managed-settings.json", "managed-settings.d/*.json")

ENABLEMENT_FILE = "extension-enablement.json"
_GEMINI_SWITCHES = "{gemini}/mcp-server-enablement.json"
_GEMINI_FORMAT: Format = "json with comments"


def decision_files(places: Places) -> Iterator[Path]:
    templates = [_GEMINI_SWITCHES, *APPROVAL_FILES, *(file[1] for file in TRUST_FILES)]
    templates += [f"{{{client}}}/extensions/{ENABLEMENT_FILE}" for client in (GEMINI, QWEN)]
    templates += [f"{folder}/{name}" for folder, _ in MANAGED for name in _LIMIT_NAMES]
    for template in templates:
        for path in fill(template, places):
            if path.name.startswith(ANY_NAME):
                yield path.parent
                yield from list_matching(path.parent, path.suffix)[0]
            else:
                yield path


def is_in_project(path: Path, machine: Machine) -> bool:
    """Return whether a user's file is in the project, because a variable points there.

    False if the project contains the home directory.
    """

    def is_below(path: Path, place: Path) -> bool:
        real = Path(os.path.realpath(path))
        return path.is_relative_to(place) or real.is_relative_to(os.path.realpath(place))

    home = machine.context.home
    folders = machine.places["project"]
    return any(is_below(path, folder) and not is_below(home, folder) for folder in folders)


def read_claude_approvals(reader: FileReader, machine: Machine) -> Approvals:
    found = Approvals()
    for template, grants in APPROVAL_FILES.items():
        for path in fill(template, machine.places):
            document = reader.document(path, in_project=grants != "always")
            if document is None:
                continue
            objects = [("", document)]
            if template == STATE_FILE:
                objects = [
                    (f"{PROJECTS_KEY}.{key}", state)
                    for key, state in project_entries(document, machine.project.keys)
                ]
                trusted = any(state.get(TRUSTED_KEY) is True for _, state in objects)
                found.trusted = trusted and not is_in_project(path, machine)
            may_approve = grants == "always" and not is_in_project(path, machine)
            may_approve = may_approve or (grants == "trusted" and found.trusted)
            for prefix, lists in objects:
                reader.warnings += found.add(
                    lists, path=str(path), prefix=prefix, may_approve=may_approve
                )
    return found


def trusting_clients(
    reader: FileReader, machine: Machine, locations: Iterable[Location]
) -> dict[str, str]:
    """Return the sources, and names, of the clients in which the user trusts the project."""
    read = {row.id for row in locations}
    return {
        id: CLIENTS[id][0]
        for id, template, format, trusts in TRUST_FILES
        for path in (fill(template, machine.places) if id in read else ())
        if not is_in_project(path, machine)
        if trusts(reader.document(path, format) or {}, machine.project.keys)
    }


def read_restrictions(
    reader: FileReader, machine: Machine, files: Sequence[tuple[Location, Path]]
) -> Restrictions:
    """Return the servers that Claude Code, Gemini CLI, Qwen Code and Amp forbid."""
    limits, places = Restrictions(), machine.places
    folders = [folder for folder, only in MANAGED if machine.context.platform in only]
    templates = [f"{folder}/{name}" for folder in folders for name in _LIMIT_NAMES]
    for template in (*templates, USER_SETTINGS):
        company = template != USER_SETTINGS
        for path in fill(template, places):
            found: tuple[Path, ...] = (path,)
            if path.name.startswith(ANY_NAME):
                found, wrong = list_matching(path.parent, path.suffix)
                limits.unreadable = limits.unreadable or (str(path.parent) if wrong else "")
            for each in found:
                if (document := reader.document(each)) is not None:
                    reader.warnings += limits.add(document, path=str(each), managed=company)
                elif company and not reader.is_absent(each):
                    limits.unreadable = limits.unreadable or str(each)
    managed = [path for row, path in files if (row.id, row.scope) == (CLAUDE, "managed")]
    limits.exclusive = next((str(path) for path in managed if not reader.is_absent(path)), "")
    for path in fill(STATE_FILE, places):
        for _, state in project_entries(reader.document(path), machine.project.keys):
            by = f"{OFF_KEY} in {printable(str(path))}"
            limits.off.setdefault(CLAUDE, {}).update(dict.fromkeys(_names(state.get(OFF_KEY)), by))
    for row, path in files:
        if row.id in (GEMINI, QWEN, AMP) and row.holds == "servers" and not row.in_project:
            _add_disabled_servers(limits, reader, row.id, path)
    for path in fill(_GEMINI_SWITCHES, places):
        for name, switch in (reader.document(path, _GEMINI_FORMAT) or {}).items():
            if as_mapping(switch).get("enabled") is False:
                limits.off.setdefault(GEMINI, {})[_fold(name)] = printable(str(path))
    return limits


def _add_disabled_servers(
    limits: Restrictions, reader: FileReader, source: str, path: Path
) -> None:
    place = printable(str(path))
    if source == AMP:
        rules = as_list(as_mapping(reader.document(path, "jsonc")).get(AMP_KEY))
        limits.amp += [(as_mapping(each), place) for each in rules]
    lists = as_mapping(as_mapping(reader.document(path, _GEMINI_FORMAT)).get("mcp"))
    excluded = dict.fromkeys(map(_fold, _names(lists.get("excluded"))), f"mcp.excluded in {place}")
    limits.off.setdefault(source, {}).update(excluded)
    # Like Gemini CLI: an empty list is ignored; every other list must have the name.
    if allowed := frozenset(_names(lists.get("allowed"))):
        limits.only.setdefault(source, []).append((allowed, f"mcp.allowed in {place}"))


def _fold(name: str) -> str:
    return name.strip().lower()
