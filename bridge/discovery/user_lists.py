"""Interprets clients' lists of servers that are approved, trusted, forbidden or switched off. Pure.

Owns Claude Code's `enabledMcpjsonServers`, `disabledMcpjsonServers`, `enableAllProjectMcpServers`,
`deniedMcpServers`, `allowedMcpServers`, `allowManagedMcpServersOnly` and `disabledMcpServers`, what
the existence of `managed-mcp.json` means, and which folders Codex, Gemini CLI and Vibe trust. A
denial counts before any permission. Claude Code's lists apply to its own servers only, except that
servers which the company denies are denied in every client's files. An unreadable list trusts
nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from urllib.parse import urlsplit

from bridge.discovery.documents import kind
from bridge.discovery.report import ConfigWarning, printable
from bridge.model import ServerSpec

ENABLED_KEY, DISABLED_KEY = "enabledMcpjsonServers", "disabledMcpjsonServers"
TRUSTED_KEY = "hasTrustDialogAccepted"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(kw_only=True)
class Approvals:
    """The user's approvals and rejections of a project's servers.

    Attributes:
        approved: Names, folded as Claude Code folds them.
        rejected: Folded name to the file that rejects it.
        all_approved: Whether every server of the project is.
        trusted: Whether the user trusts the folder, in which its own files may approve.
    """

    approved: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)
    all_approved: bool = False
    trusted: bool = False

    def approves(self, name: str) -> bool:
        return self.all_approved or _fold_name(name) in self.approved

    def rejected_in(self, name: str) -> str:
        return self.rejected.get(_fold_name(name), "")

    def add(
        self, lists: Mapping[str, object], *, path: str, prefix: str = "", may_approve: bool
    ) -> Iterator[ConfigWarning]:
        """Take in one object of one file; yield warnings about it.

        Args:
            prefix: The dotted place of `lists` in the file; empty at its top.
            may_approve: Whether approvals count here; rejections always do.
        """
        names: dict[str, set[str]] = {ENABLED_KEY: set(), DISABLED_KEY: set()}
        for key in names:
            value = lists.get(key, [])
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                names[key] = set(map(_fold_name, value))
                continue
            reason = f"must be a list of server names, not {kind(value)}"
            if isinstance(value, list):
                reason = "must be a list of server names; it has members that are not strings"
            place = f"{prefix}.{key}" if prefix else key
            yield ConfigWarning(path=path, key=place, reason=reason)
        for name in names[DISABLED_KEY]:
            self.rejected.setdefault(name, path)
        if may_approve:
            self.approved |= names[ENABLED_KEY]
            self.all_approved |= lists.get("enableAllProjectMcpServers") is True


def _fold_name(name: str) -> str:
    return _UNSAFE.sub("_", name)


def codex_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    """Read `[projects."<directory>"] trust_level` of Codex's `config.toml`."""
    projects = document.get("projects")
    if not isinstance(projects, Mapping):
        return False
    entries = [projects.get(directory) for directory in directories]
    levels = [entry.get("trust_level") for entry in entries if isinstance(entry, Mapping)]
    return "trusted" in levels and "untrusted" not in levels


def gemini_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    """Read Gemini CLI's `trustedFolders.json`: the rule nearest to the working directory counts."""
    if not directories:
        return False
    here = PurePath(directories[-1])
    nearest, trusted = -1, False
    for path, level in document.items():
        if level not in ("TRUST_FOLDER", "TRUST_PARENT", "DO_NOT_TRUST"):
            continue
        folder = PurePath(os.path.dirname(path) if level == "TRUST_PARENT" else path)  # noqa: PTH120
        depth = len(folder.parts)
        if not here.is_relative_to(folder) or depth < nearest:
            continue
        # Of two rules on one folder, the one that distrusts it counts.
        distrusted_alike = depth == nearest and not trusted
        trusted = level != "DO_NOT_TRUST" and not distrusted_alike
        nearest = depth
    return trusted


def vibe_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    """Read Vibe's `trusted_folders.toml`: the nearest folder in either list counts."""
    if not directories:
        return False
    trusted, untrusted = (_names(document.get(key)) for key in ("trusted", "untrusted"))
    for folder in (PurePath(directories[-1]), *PurePath(directories[-1]).parents):
        if str(folder) in untrusted or str(folder) in trusted:
            # As with the others, distrust counts where both lists name a folder.
            return str(folder) not in untrusted
    return False


DENIED_KEY = "deniedMcpServers"
ALLOWED_KEY = "allowedMcpServers"
OFF_KEY = "disabledMcpServers"

AMP_KEY = "amp.mcpPermissions"
ALLOWING_NONE = "Claude Code's settings, which allow none"

CLAUDE, GEMINI, QWEN, AMP = "claude-code", "gemini", "qwen", "amp"  # Sources, by their names.

_FOLDED = frozenset({GEMINI, QWEN})
"""Sources whose lists of servers that are off are compared without regard to case."""


@dataclass(frozen=True, kw_only=True)
class ListedServer:
    """One server in a list: by its name, its whole command line or its address.

    Attributes:
        path: The file that has it.
        managed: Whether that is the company's.
    """

    path: str
    managed: bool
    name: str = ""
    command: tuple[str, ...] = ()
    url: str = ""

    def denies(self, spec: ServerSpec) -> bool:
        """Return whether this denies a server; every spelling of its address matches."""
        if self.name:
            return spec.name == self.name
        if self.command:
            return spec.transport == "stdio" and _command_line(spec) == self.command
        pattern = _pattern(self.url, ".*", ".*")
        urls = (spec.url, _normalize_url(spec.url))
        return spec.transport != "stdio" and any(pattern.fullmatch(url) for url in urls)

    def allows(self, spec: ServerSpec) -> bool:
        """Return whether this allows a server; a wildcard in the host does not match the path."""
        if self.name:
            return spec.name == self.name
        if self.command:
            return spec.transport == "stdio" and _command_line(spec) == self.command
        pattern = _pattern(self.url, "[^/?#@]*", ".*")
        return spec.transport != "stdio" and bool(pattern.fullmatch(_normalize_url(spec.url)))


@dataclass(kw_only=True)
class Restrictions:
    """All lists that forbid servers.

    Attributes:
        denied: Forbidden servers.
        allowing: Each file's list of the only allowed servers, and whether it is the company's.
        only_managed: Whether only the company's files may allow servers.
        off: By source, names that are switched off, with the reason.
        only: By source, lists of the only names that are not switched off, with the reason.
        exclusive: The company's file of servers, which Claude Code uses alone; empty if none.
        unreadable: A file of the company that cannot be read, and may forbid any server.
        amp: Amp's rules, the strongest first, each with its file.
    """

    denied: list[ListedServer] = field(default_factory=list)
    allowing: list[tuple[bool, list[ListedServer]]] = field(default_factory=list)
    only_managed: bool = False
    off: dict[str, dict[str, str]] = field(default_factory=dict)
    only: dict[str, list[tuple[frozenset[str], str]]] = field(default_factory=dict)
    exclusive: str = ""
    unreadable: str = ""
    amp: list[tuple[Mapping[str, object], str]] = field(default_factory=list)

    def add(
        self, document: Mapping[str, object], *, path: str, managed: bool
    ) -> Iterator[ConfigWarning]:
        """Take in the lists of one settings file of Claude Code; yield warnings about it."""
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

    def allowed(self) -> list[ListedServer] | None:
        """Return the only allowed servers; None if no file limits them."""
        counting = [each for managed, each in self.allowing if managed or not self.only_managed]
        return [entry for each in counting for entry in each] if counting else None

    def reason(self, spec: ServerSpec, source: str) -> str:
        """Return why a server of a source may not be used; empty if it may."""
        claude = source == CLAUDE
        for entry in self.denied:
            if (claude or entry.managed) and entry.denies(spec):
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
        allowed = self.allowed()
        if allowed is not None and not _is_allowed(spec, allowed):
            paths = ", ".join(dict.fromkeys(printable(each.path) for each in allowed))
            return f"not in {ALLOWED_KEY} of {paths or ALLOWING_NONE}"
        return ""

    def off_by(self, name: str, source: str) -> str:
        """Return the list that switches a client's server off; empty if none does."""
        if by := self.off.get(source, {}).get(name.strip().lower() if source in _FOLDED else name):
            return by
        return next((by for names, by in self.only.get(source, ()) if name not in names), "")


def _is_allowed(spec: ServerSpec, allowed: list[ListedServer]) -> bool:
    # As in Claude Code: where there are command lines, or addresses, a name is not enough.
    exact = [each for each in allowed if (each.command if spec.transport == "stdio" else each.url)]
    named = [each for each in allowed if each.name]
    return any(each.allows(spec) for each in (exact or named))


def gemini_lists(
    document: Mapping[str, object], path: str
) -> tuple[dict[str, str], tuple[tuple[frozenset[str], str], ...]]:
    """Return the excluded and the allowed names in one of the user's files of Gemini CLI or Qwen.

    Gemini CLI excludes the names of all files, and allows only those that are in every file's list.
    """
    lists = document.get("mcp")
    if not isinstance(lists, Mapping):
        return {}, ()
    excluded, allowed = (_names(lists.get(key)) for key in ("excluded", "allowed"))
    off = {name.strip().lower(): f"mcp.excluded in {printable(path)}" for name in excluded}
    # As in Gemini CLI, an empty list of allowed names counts as no list.
    return off, ((frozenset(allowed), f"mcp.allowed in {printable(path)}"),) if allowed else ()


def amp_rules(
    document: Mapping[str, object], path: str
) -> tuple[tuple[Mapping[str, object], str], ...]:
    """Return the rules of one of Amp's files of the user or the company; the first match counts."""
    listed = document.get(AMP_KEY)
    items = listed if isinstance(listed, list) else ()
    return tuple((item, printable(path)) for item in items if isinstance(item, Mapping))


def _amp_matches(rule: Mapping[str, object], spec: ServerSpec) -> bool:
    """Return whether a rule is about a server; one with a pattern of another kind if it rejects."""
    wanted = rule.get("matches")
    if not isinstance(wanted, Mapping):
        return False
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


def gemini_switched_off(document: Mapping[str, object], path: str) -> dict[str, str]:
    """Return the servers switched off by `/mcp disable` of Gemini CLI."""
    return {
        name.strip().lower(): printable(path)
        for name, state in document.items()
        if isinstance(state, Mapping) and state.get("enabled") is False
    }


def _names(listed: object) -> tuple[str, ...]:
    items = listed if isinstance(listed, list) else ()
    return tuple(each for each in items if isinstance(each, str))


def names_off(state: Mapping[str, object]) -> tuple[str, ...]:
    return _names(state.get(OFF_KEY))


def _parse_listed(item: object, *, path: str, managed: bool) -> ListedServer | None:
    if not isinstance(item, Mapping):
        return None
    given = [key for key in ("serverName", "serverCommand", "serverUrl") if key in item]
    if len(given) != 1:
        return None
    value = item[given[0]]
    if given[0] == "serverCommand":
        if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
            return None
        return ListedServer(path=path, managed=managed, command=tuple(value))
    if not isinstance(value, str) or not value:
        return None
    if given[0] == "serverName":
        return ListedServer(path=path, managed=managed, name=value)
    if value.count("*") > 16:
        return None
    return ListedServer(path=path, managed=managed, url=value)


def _command_line(spec: ServerSpec) -> tuple[str, ...]:
    return (spec.command, *spec.args)


def _pattern(text: str, in_host: str, in_path: str) -> re.Pattern[str]:
    """Return a case-insensitive pattern for an address with wildcards."""
    scheme, sep, rest = text.partition("://")
    host, slash, path = rest.partition("/") if sep else (scheme, "", "")
    if not sep:
        scheme = ""
    parts = ((scheme, in_host), (sep, ""), (host, in_host), (slash, ""), (path, in_path))
    written = "".join(wild.join(map(re.escape, part.split("*"))) for part, wild in parts)
    return re.compile(written, re.IGNORECASE | re.DOTALL)


def _normalize_url(url: str) -> str:
    """Return an address without user name and default port."""
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
