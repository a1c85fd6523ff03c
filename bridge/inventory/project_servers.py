"""Texts on a project's servers that wait for approval. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from bridge.catalog.entries import server_aliases
from bridge.discovery.precedence import NOT_APPROVED
from bridge.discovery.report import ProposedServer
from bridge.errors import ApprovalNeededError
from bridge.gate.question import form, one_line, quote_text, safe_name, visible_lines
from bridge.model import Json

MAX_LINES = 60
MAX_CHARS = 4000
"""Characters of a repository's text in a question. A longer definition cannot be approved so."""

_INDENT = "    "


def approval_needed(proposal: ProposedServer, more: str = "") -> ApprovalNeededError:
    file = os.path.relpath(proposal.source.path, proposal.definition.directory)
    reason = proposal.reason
    if reason == NOT_APPROVED:
        reason = "the user has not approved it"
    message = (
        f"The server {safe_name(proposal.name)} of this project ({quote_text(file, MAX_CHARS)}) "
        f"is not started: {reason}.{more}"
    )
    return ApprovalNeededError(
        message,
        remedy=f"The user can approve it: {proposal.remedy}.",
        host_detail=f"In {proposal.source}.",
    )


def waiting_line(proposals: Sequence[ProposedServer], most: int = 5) -> str:
    if not proposals:
        return ""
    names = list(dict.fromkeys(safe_name(each.name) for each in proposals))
    shown = ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
    return (
        f"Not approved, so not started (servers of this project): {shown}. The user can look at "
        "one and approve it: `mcp-code-bridge servers approve NAME`."
    )


@lru_cache(maxsize=2048)
def reference_names(name: str) -> frozenset[str]:
    """Return a server's names in programs: its own name, its alias and its variable."""
    alias = server_aliases([name])[name]
    return frozenset((name, alias, f"mcp_{alias}"))


def definition_lines(proposal: ProposedServer) -> list[str]:
    """Return the facts about a server for its approval, without the definition itself."""
    definition = proposal.definition
    spec = proposal.spec
    start = f"started as: {one_line(spec.command, MAX_CHARS)}"
    if spec.transport != "stdio":
        start = "connected to over the network, with the variables that the definition names"
    return [
        f"in: {one_line(definition.path, MAX_CHARS)}",
        f"used in: {one_line(definition.directory, MAX_CHARS)}",
        start,
        *([] if proposal.reason == NOT_APPROVED else [f"why it waits: {proposal.reason}"]),
        f"digest: {definition.digest.removeprefix('sha256:')}",
    ]


def approval_question(proposal: ProposedServer) -> Mapping[str, Json] | None:
    """Return the question's elicitation parameters; None if the definition is too long."""
    shown, rest = visible_lines(proposal.spec.written, MAX_LINES, MAX_CHARS)
    if rest:
        return None
    name = safe_name(proposal.name)
    lines = [f"{_INDENT}Use server {name}, which this project defines?"]
    lines += [f"{_INDENT}{line}" for line in definition_lines(proposal)]
    lines.append(f"{_INDENT}It is not sandboxed. Its definition, exactly as the file has it:")
    lines += [f"{_INDENT}{line}" for line in shown]
    titles = {
        "session": "Until the bridge ends",
        "always": "Always, until its definition changes",
        "no": "No",
    }
    return form("\n".join(lines), titles)
