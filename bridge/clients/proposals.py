"""Proposes policy for what a client allowed or forbade of servers that moved behind the bridge.

Pure. Lists of tools that are let through keep working, because discovery reads them from the moved
entries; as lines of a policy they hold for every client. What a client does unasked is never
allowed silently: a person puts a line into the settings file, or does not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence

from bridge.discovery.dialect import Dialect
from bridge.discovery.report import printable
from bridge.errors import SettingsError
from bridge.settings import globs
from bridge.settings.policy import parse_policy
from bridge.settings.policy_edit import rule_lines

_UNASKED = ("autoApprove", "alwaysAllow", "autoApproved", "always_allow")
"""Fields that list tools which a client calls without asking."""

_PERMISSION = re.compile(r"mcp__(?P<server>.+?)(?:__(?P<tool>.+))?")
"""A tool, or all of a server, in Claude Code's lists of permissions."""

_HEAD = """\
# Proposed by `mcp-code-bridge install --move` from what {client} had of the servers that moved.
# Nothing of it holds yet: put the lines that you agree with into config.toml. Where a policy is
# new there, reads are allowed and you are asked about everything else (docs/policy.md).
"""


def propose(
    client: str,
    moved: Mapping[str, object],
    dialect: Dialect,
    permissions: Mapping[str, Sequence[str]],
) -> str:
    """Return the text of a policy, or an empty one if the client said nothing of the servers.

    Args:
        client: As shown.
        moved: The entries by name, decoded.
        permissions: Claude Code's, by "allow", "ask" and "deny".
    """
    rules = []
    for name, value in moved.items():
        entry = value if isinstance(value, Mapping) else {}
        off = [tool for key in dialect.without_keys for tool in _texts(entry.get(key))]
        rules.append(_rule(client, name, "deny", off, "are turned off"))
        for action in ("deny", "ask", "allow"):
            listed = _permitted(name, permissions.get(action, ()))
            rules.append(_rule(client, name, action, listed, f"are under {action}"))
        # Gemini CLI and its forks call all tools without asking.
        unasked = ["*"] if entry.get("trust") is True else []
        unasked += [tool for key in _UNASKED for tool in _texts(entry.get(key))]
        rules.append(_rule(client, name, "allow", unasked, "are called unasked"))
    kept = [rule for rule in rules if rule]
    return "\n".join([_HEAD.format(client=client), *kept]) if kept else ""


def _rule(client: str, server: str, action: str, tools: Iterable[str], why: str) -> str:
    """Return a rule; a comment if a policy cannot have its names."""
    tools = list(dict.fromkeys(tools))
    if not tools:
        return ""
    rule = {
        "name": f"{server}: tools that {why} in {client}",
        "server": globs.literal(server),
        "tool": ["*" if tool == "*" else globs.literal(tool) for tool in tools],
        "action": action,
    }
    text = "\n".join([*rule_lines(rule), ""])
    try:
        parse_policy(tomllib.loads(text)["policy"], "proposed")
    except (SettingsError, tomllib.TOMLDecodeError):
        return f"# {printable(server)[:80]}: tools that {why} have names that no policy can have.\n"
    return text


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _permitted(server: str, listed: Sequence[str]) -> list[str]:
    """Return the tools of a server in a list of Claude Code's; "*" for all of them."""
    spelled = re.sub(r"[^A-Za-z0-9_-]", "_", server)
    found = [_PERMISSION.fullmatch(each) for each in listed]
    exact = (match for match in found if match is not None)
    tools = [(match["tool"] or "*") for match in exact if match["server"] == spelled]
    return [tool for tool in tools if tool == "*" or "*" not in tool]
