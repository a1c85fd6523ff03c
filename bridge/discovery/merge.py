"""Several files' entries to one list of servers: pure.

Owns precedence, and the reasons for leaving out a good entry: it would start this bridge, Claude
Code's lists reject it, the project's servers are not wanted, or a stronger file has the name. The
same server in several files is one, which knows where else it stands. Under two names it is two:
programs may use either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from bridge.discovery.approvals import Approvals
from bridge.discovery.clients import Location
from bridge.discovery.parse import Parsed
from bridge.discovery.recursion import starts_bridge
from bridge.discovery.report import SkippedServer, printable, where
from bridge.model import ServerSpec, Source

ProjectServers = Literal["all", "approved", "none"]

_DEFINING = frozenset({"transport", "command", "args", "env", "cwd", "url", "headers"})
"""Fields that make a server the one it is; in others, its files may differ."""

_FIELDS = (
    *("transport", "command", "args", "env", "cwd", "url", "headers"),
    *("description", "start_timeout", "call_timeout", "tools", "oauth"),
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the caller allows.

    Attributes:
        approvals: What Claude Code's lists say about the project's servers.
    """

    allow_self: bool
    project_servers: ProjectServers
    approvals: Approvals


@dataclass
class _Holder:
    """Who has a name, and what weaker files say of it.

    Attributes:
        spec: The server; None when the entry turns it off.
    """

    source: Source
    spec: ServerSpec | None
    also: list[Source] = field(default_factory=list)
    differences: dict[str, None] = field(default_factory=dict)

    def result(self) -> ServerSpec | None:
        if self.spec is None or not (self.also or self.differences):
            return self.spec
        differences = tuple(name for name in _FIELDS if name in self.differences)
        return replace(self.spec, also=tuple(self.also), differences=differences)


def merge(
    files: Iterable[tuple[Location, Parsed]], rules: Rules
) -> tuple[tuple[ServerSpec, ...], tuple[SkippedServer, ...]]:
    """The servers to use and the definitions left out, strongest file first."""
    holders: dict[str, _Holder] = {}
    skipped: list[SkippedServer] = []
    for location, parsed in files:
        for entry in parsed.entries:
            verdict = _verdict(entry, location, rules)
            if isinstance(verdict, SkippedServer) and not verdict.holds_name:
                skipped.append(verdict)
            elif holder := holders.get(verdict.name):
                if not _joined(verdict, holder):
                    skipped.append(_shadowed(verdict, holder.source, holder.spec is None))
            else:
                spec = verdict if isinstance(verdict, ServerSpec) else None
                holders[verdict.name] = _Holder(source=verdict.source, spec=spec)
                if isinstance(verdict, SkippedServer):
                    skipped.append(verdict)
    servers = tuple(spec for holder in holders.values() if (spec := holder.result()) is not None)
    return servers, tuple(skipped)


def differing(one: ServerSpec, other: ServerSpec) -> tuple[str, ...]:
    """Names of the fields that two definitions do not share."""
    return tuple(name for name in _FIELDS if getattr(one, name) != getattr(other, name))


def _joined(entry: ServerSpec | SkippedServer, holder: _Holder) -> bool:
    """Note what a weaker definition says; whether it is of the same server."""
    if holder.spec is None or not isinstance(entry, ServerSpec):
        return False
    differences = differing(holder.spec, entry)
    holder.differences.update(dict.fromkeys(differences))
    if _DEFINING & set(differences):
        return False
    holder.also.append(entry.source)
    return True


def _verdict(
    entry: ServerSpec | SkippedServer, location: Location, rules: Rules
) -> ServerSpec | SkippedServer:
    reason = _refusal(entry.name, location, rules)
    if isinstance(entry, SkippedServer):
        # A project that is not trusted must not turn off the user's own servers either.
        return replace(entry, holds_name=False) if reason else entry
    if not reason and not rules.allow_self and _is_self(entry):
        reason = "it would start this bridge again"
    return SkippedServer(name=entry.name, source=entry.source, reason=reason) if reason else entry


def _refusal(name: str, location: Location, rules: Rules) -> str:
    """Why a project's server is not wanted; empty when it is."""
    if not location.in_project:
        return ""
    if location.approvable and (path := rules.approvals.rejected_in(name)):
        return f"rejected in Claude Code (disabledMcpjsonServers in {printable(path)})"
    if rules.project_servers == "none":
        return "servers of the working directory are turned off"
    if rules.project_servers == "approved":
        if not location.approvable:
            return "Claude Code's approvals do not cover this file"
        if not rules.approvals.approves(name):
            return "not approved in Claude Code (run `claude` in this directory to approve it)"
    return ""


def _is_self(spec: ServerSpec) -> bool:
    return spec.transport == "stdio" and starts_bridge(spec.command, spec.args)


def _shadowed(entry: ServerSpec | SkippedServer, holder: Source, holder_off: bool) -> SkippedServer:
    off = ", which turns it off" if holder_off else ""
    reason = f"shadowed by {where(holder.path, holder.key)}{off}"
    return SkippedServer(name=entry.name, source=entry.source, reason=reason)
