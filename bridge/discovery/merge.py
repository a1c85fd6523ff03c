"""Several files' entries to one list of servers: pure.

Owns precedence, and the reasons for leaving out a good entry: it would start this bridge, Claude
Code's lists reject it, the project's servers are not wanted, or a stronger file has the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from bridge.discovery.approvals import Approvals
from bridge.discovery.clients import Location
from bridge.discovery.parse import Parsed
from bridge.discovery.recursion import starts_bridge
from bridge.discovery.report import SkippedServer, printable, where
from bridge.model import ServerSpec, Source

ProjectServers = Literal["all", "approved", "none"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the caller allows.

    Attributes:
        approvals: What Claude Code's lists say about the project's servers.
    """

    allow_self: bool
    project_servers: ProjectServers
    approvals: Approvals


def merge(
    files: Iterable[tuple[Location, Parsed]], rules: Rules
) -> tuple[tuple[ServerSpec, ...], tuple[SkippedServer, ...]]:
    """The servers to use and the definitions left out, strongest file first."""
    holders: dict[str, tuple[Source, bool]] = {}
    servers: list[ServerSpec] = []
    skipped: list[SkippedServer] = []
    for location, parsed in files:
        for entry in parsed.entries:
            verdict = _verdict(entry, location, rules)
            if isinstance(verdict, SkippedServer) and not verdict.holds_name:
                skipped.append(verdict)
                continue
            off = isinstance(verdict, SkippedServer)
            if holder := holders.get(verdict.name):
                skipped.append(_shadowed(verdict, *holder))
                continue
            holders[verdict.name] = (verdict.source, off)
            if isinstance(verdict, SkippedServer):
                skipped.append(verdict)
            else:
                servers.append(verdict)
    return tuple(servers), tuple(skipped)


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
