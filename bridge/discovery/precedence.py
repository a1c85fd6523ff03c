"""Merges the entries of all files into one list of servers, without this bridge itself: pure.

A server that several files define under one name becomes one, with all its sources. A project's
server never gets the name, or the name's spelling in programs, of a user's server.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bridge.discovery.consents import APPEARED, Consent, digest_of, look_record
from bridge.discovery.dialect import Location
from bridge.discovery.locations import DiscoveryContext
from bridge.discovery.parser import Parsed
from bridge.discovery.report import Definition, ProposedServer, SkippedServer, printable, where
from bridge.discovery.user_lists import Approvals, Restrictions, fold_name
from bridge.model import ServerSpec

_IDENTITY = ("transport", "command", "args", "env", "cwd", "url", "headers")  # Of a server.
_FIELDS = (*_IDENTITY, "description", "start_timeout", "call_timeout", "tools", "oauth")

NOT_APPROVED = "a project's server that you have not approved"
CHANGED = "its definition has changed since it was approved"
"""Reasons why a project's server needs approval."""

ITSELF = "it would start this bridge again"
OWN_NAME_TAKEN = "its name is the bridge's own; give it another one"
SHADOWED = "shadowed by "
UNUSED = ", which is not used either: "
"""Reasons to omit a server. The last two surround a place and precede another reason."""

Verdict = ServerSpec | SkippedServer | ProposedServer


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Approvals and limits of servers. `trusting_clients`, by location id, trust the project."""

    context: DiscoveryContext
    approvals: Approvals
    trusting_clients: Mapping[str, str]
    restrictions: Restrictions

    @cached_property
    def directory(self) -> str:
        return os.path.realpath(self.context.cwd)

    def approved_by_client(self, name: str, location: Location) -> str:
        if location.approvable and self.approvals.approves(name):
            return location.client
        return self.trusting_clients.get(location.id, "")

    def definition(self, name: str, path: str, written: str) -> Definition:
        return Definition(directory=self.directory, path=path, name=name, digest=digest_of(written))

    def approving_clients(self, locations: Iterable[Location]) -> set[str]:
        if self.context.project_servers != "approved":
            return set()
        found = self.approvals
        by_name = found.trusted or found.all_approved or found.approved
        named = {each.client for each in locations if each.approvable and by_name}
        return {*self.trusting_clients.values(), *named}

    def refusal(self, definition: Definition, location: Location) -> str:
        """Return why a project's definition may not be used; empty if it may."""
        if definition in self.context.consents.by_person:
            return ""
        client = self.approved_by_client(definition.name, location)
        if not client:
            approved = (replace(each, digest="") for each in self.context.consents.by_person)
            return CHANGED if replace(definition, digest="") in approved else NOT_APPROVED
        seen = self.context.consents.seen_digest(definition, client)
        first = seen is None and self.context.consents.is_first_look(self.directory, client)
        if first or seen == definition.digest:
            return ""
        if seen is None or seen == APPEARED:
            return f"approved in {client}, but it appeared while a bridge was running"
        return f"changed since its approval in {client} was first seen"


def merge(
    files: Sequence[tuple[Location, Parsed]], rules: Rules
) -> tuple[list[ServerSpec], list[SkippedServer], list[ProposedServer], list[Consent]]:
    """Return the used servers, strongest file first, the skipped, the proposed, new approvals."""
    holders: dict[str, ServerSpec | SkippedServer] = {}
    spelled: dict[str, ServerSpec | SkippedServer] = {}
    skipped: list[SkippedServer] = []
    proposed: list[ProposedServer] = []
    first_seen = [
        mark
        for client in sorted(rules.approving_clients(location for location, _ in files))
        if (mark := look_record(rules.directory, client)) not in rules.context.consents.seen
    ]
    # User files come first, whatever their order in the table.
    for location, parsed in sorted(files, key=lambda each: each[0].in_project):
        for entry in parsed.entries:
            verdict = _verdict(entry, location, rules)
            if isinstance(verdict, SkippedServer) and not verdict.holds_name:
                skipped.append(verdict)
                if not location.in_project and not verdict.foreign:
                    # An unused user's server still reserves its name against the project.
                    spelled.setdefault(_spell(verdict.name), verdict)
                continue
            holder = holders.get(verdict.name)
            if holder is None and location.in_project:
                holder = spelled.get(_spell(verdict.name))
            if holder is not None:
                weaker = verdict.spec if isinstance(verdict, ProposedServer) else verdict
                is_same = False
                match weaker, holder:
                    case ServerSpec(), ServerSpec() if weaker.name == holder.name:
                        holders[holder.name], is_same = _with_weaker(holder, weaker)
                if not is_same:
                    reason = f"{SHADOWED}{where(holder.source.path, holder.source.key)}"
                    if isinstance(holder, SkippedServer):
                        reason += f"{UNUSED}{holder.reason}"
                    skipped.append(
                        SkippedServer(name=weaker.name, source=weaker.source, reason=reason)
                    )
                continue
            first_seen.extend(_first_seen(verdict, location, rules))
            if isinstance(verdict, ProposedServer):
                proposed.append(verdict)
                continue
            holders[verdict.name] = verdict
            if not location.in_project:
                spelled.setdefault(_spell(verdict.name), verdict)
            if isinstance(verdict, SkippedServer):
                skipped.append(verdict)
    servers = [each for each in holders.values() if isinstance(each, ServerSpec)]
    return servers, skipped, proposed, list(dict.fromkeys(first_seen))


def _with_weaker(held: ServerSpec, weaker: ServerSpec) -> tuple[ServerSpec, bool]:
    """Return a server with a weaker definition's differences, and whether both are one server."""
    names = [name for name in _FIELDS if getattr(held, name) != getattr(weaker, name)]
    if names:
        place = where(weaker.source.path, weaker.source.key)
        text = f"{weaker.source.client}, {place}: {', '.join(names)}"
        held = replace(held, differences=tuple(dict.fromkeys((*held.differences, text))))
    if set(_IDENTITY) & set(names):
        return held, False
    return replace(held, also=(*held.also, weaker.source)), True


def _verdict(entry: ServerSpec | SkippedServer, location: Location, rules: Rules) -> Verdict:
    reason = ""
    if location.approvable and (path := rules.approvals.rejected.get(fold_name(entry.name))):
        reason = f"rejected in Claude Code (disabledMcpjsonServers in {printable(path)})"
    elif location.in_project and rules.context.project_servers == "none":
        reason = "servers of the working directory are turned off"
    if isinstance(entry, SkippedServer):
        # An untrusted project must not turn off the user's own servers.
        return replace(entry, holds_name=False) if reason else entry
    if not reason and (by := rules.restrictions.off_by(entry.name, location.id)):
        off = f"switched off in {location.client} ({by})"
        return SkippedServer(name=entry.name, source=entry.source, reason=off, holds_name=True)
    reason = reason or rules.restrictions.reason(entry, location.id)
    if not reason and not rules.context.allow_self and is_bridge(entry):
        reason = ITSELF
    if not reason and _spell(entry.name).replace("_", "-") in OWN_PROGRAMS:
        reason = OWN_NAME_TAKEN
    if reason:
        return SkippedServer(name=entry.name, source=entry.source, reason=reason)
    if location.in_project and rules.context.project_servers == "approved" and not location.moved:
        definition = rules.definition(entry.name, entry.source.path, entry.written)
        if reason := rules.refusal(definition, location):
            return ProposedServer(spec=entry, definition=definition, reason=reason)
    return entry


def _first_seen(verdict: Verdict, location: Location, rules: Rules) -> Iterable[Consent]:
    if isinstance(verdict, SkippedServer) or not location.in_project or location.moved:
        return
    spec = verdict.spec if isinstance(verdict, ProposedServer) else verdict
    client = rules.approved_by_client(spec.name, location)
    definition = rules.definition(spec.name, spec.source.path, spec.written)
    if not client or rules.context.project_servers != "approved":
        return
    if rules.context.consents.seen_digest(definition, client) is None:
        first = rules.context.consents.is_first_look(rules.directory, client)
        digest = definition.digest if first else APPEARED
        yield Consent(definition=replace(definition, digest=digest), by=client)


def is_bridge(spec: ServerSpec) -> bool:
    if spec.transport == "stdio":
        return starts_bridge(spec.command, spec.args)
    return spec.name == OWN_NAME


def _spell(name: str) -> str:
    """Return a name's spelling in programs; two servers with one spelling would collide."""
    plain = unicodedata.normalize("NFKD", name)
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    return re.sub(r"[^a-z0-9_]+", "_", plain.lower()).strip("_")[:64]


OWN_PROGRAMS = frozenset({"mcp-code-bridge", "mcp-server-code-execution-mode"})
"""Console scripts of this bridge and of the first public bridge of this kind, which would load the
same configuration and start this one.
"""

OWN_NAME = "code-bridge"
"""The name that `install` gives the bridge. A remote entry of this name is the bridge."""

_PYTHON = re.compile(r"(python|pypy|pythonw)(\d+(\.\d+)*)?t?|py")
_LAUNCHERS = frozenset(
    ("env", "uvx", "uv", "pipx", "poetry", "pdm", "hatch", "timeout", "nice", "ionice", "stdbuf")
    + ("sudo", "doas", "nohup", "setsid", "exec", "time", "command", "caffeinate")
)

_PASSED_OVER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*|[0-9.]+[smhd]?|run|tool", re.DOTALL)
"""Words before that command that are not options: variables, times and subcommands."""


def starts_bridge(command: str, args: Sequence[str]) -> bool:
    """Return whether a command starts this bridge, through at most eight nested launchers.

    Only the executed program counts, not its arguments: a server for a directory with the bridge's
    name is not the bridge. Unknown launchers are assumed not to start the bridge.
    """
    return _starts((command, *args), 8)


def _starts(argv: Sequence[str], depth: int) -> bool:
    if not argv or depth == 0:
        return False
    program, rest = _program(argv[0]), argv[1:]
    if program.replace("_", "-") in OWN_PROGRAMS:
        return True
    if program in {"sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "busybox"}:
        return _shell_starts(rest, depth)
    is_python = _PYTHON.fullmatch(program) is not None
    if is_python or program in _LAUNCHERS:
        return _launcher_starts(rest, depth, is_python=is_python)
    return False


def _program(path: str) -> str:
    name = re.split(r"[/\\]", path)[-1].lower()
    return re.sub(r"\.(exe|cmd|bat|ps1|pyz|pex|py)$", "", name)


def _launcher_starts(args: Sequence[str], depth: int, *, is_python: bool) -> bool:
    """Return whether the module, script or command among a launcher's arguments is the bridge.

    It is unknown which options take a value: the word after an option counts as its value.
    """
    is_value = False
    for at, word in enumerate(args):
        if module := re.fullmatch(r"-[bBdEhiIOPqRsSuvVx]*m(.*)|--module", word, flags=re.DOTALL):
            named = module[1] or next(iter(args[at + 1 :]), "")
            return named.split(".")[0] in {"bridge", "mcp_server_code_execution_mode"}
        if is_python and word.startswith("-c"):
            return False
        if word.startswith("-"):
            valued = word in ("-X", "-W") if is_python else "=" not in word
            is_value = valued and word != "--"
        elif is_value or _PASSED_OVER.fullmatch(word):
            is_value = False
        elif is_python:
            return _program(word).replace("_", "-") in OWN_PROGRAMS
        else:
            plain = re.split(r"[\[@=<>!~;\s]", word, maxsplit=1)[0]
            if "://" in word:
                plain = re.sub(r"(\.git)?(@[^/@]*)?(#.*)?$", "", word, count=1)
            return _starts((plain, *args[at + 1 :]), depth - 1)
    return False


def _shell_starts(args: Sequence[str], depth: int) -> bool:
    for at, word in enumerate(args):
        if not word.startswith("-"):
            return _starts(args[at:], depth - 1)
        if not word.startswith("--") and "c" in word:
            script = next((text for text in args[at + 1 :] if not text.startswith("-")), "")
            return any(_starts(argv, depth - 1) for argv in _simple_commands(script))
    return False


def _simple_commands(script: str) -> list[list[str]]:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= frozenset(";&|()\n"):
                commands.append([])
            elif commands[-1] or not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", token):
                commands[-1].append(token)
    except ValueError:
        # An unclosed quote. The shell would refuse it, too; use the words before it.
        pass
    return commands
