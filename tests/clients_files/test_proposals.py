"""What a client allowed or forbade is proposed as policy, and nothing of it holds by itself."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from bridge.clients.proposals import propose
from bridge.discovery.client_dialects import CODEX, CURSOR, GEMINI, KIRO
from bridge.discovery.dialect import Dialect
from bridge.settings.policy import PolicySpec, parse_policy


def policy_of(text: str) -> PolicySpec:
    return parse_policy(tomllib.loads(text)["policy"], "test")


def rules_of(entry: Mapping[str, object], dialect: Dialect) -> list[tuple[str, list[str]]]:
    text = propose("Some client", {"files": entry}, dialect, {})
    rules = tomllib.loads(text)["policy"]["rules"]
    assert len(policy_of(text).rules) == len(rules)
    assert all(rule["server"] == "files" for rule in rules)
    return [(rule["action"], rule["tool"]) for rule in rules]


def test_tools_that_are_turned_off_are_denied() -> None:
    assert rules_of({"disabled_tools": ["drop", "wipe"]}, CODEX) == [("deny", ["drop", "wipe"])]


def test_tools_that_are_called_unasked_are_allowed_after_those_that_are_denied() -> None:
    entry = {"disabledTools": ["drop"], "autoApprove": ["read"]}
    assert rules_of(entry, KIRO) == [("deny", ["drop"]), ("allow", ["read"])]


def test_a_trusted_servers_tools_are_all_allowed() -> None:
    assert rules_of({"trust": True}, GEMINI) == [("allow", ["*"])]


def test_a_star_in_a_tools_name_is_plain() -> None:
    assert rules_of({"autoApprove": ["get_*"]}, CURSOR) == [("allow", ["get_\\*"])]


def test_claude_codes_permissions_are_of_a_server_as_it_spells_it() -> None:
    listed = {
        "allow": ["mcp__my_files__read", "mcp__other__x", "Bash(ls)"],
        "deny": ["mcp__my_files"],
        "ask": ["mcp__my_files__move"],
    }
    text = propose("Claude Code", {"my files": {}}, CURSOR, listed)
    rules = tomllib.loads(text)["policy"]["rules"]
    assert [(rule["action"], rule["tool"]) for rule in rules] == [
        ("deny", ["*"]),
        ("ask", ["move"]),
        ("allow", ["read"]),
    ]
    assert len(policy_of(text).rules) == 3


def test_nothing_is_proposed_where_a_client_says_nothing() -> None:
    assert propose("Cursor", {"files": {"command": "x", "autoApprove": []}}, CURSOR, {}) == ""


def test_a_name_that_no_policy_can_have_is_a_comment() -> None:
    text = propose("Cursor", {"files": {"autoApprove": ["x" * 5000]}}, CURSOR, {})
    assert "names that no policy can have" in text
    assert tomllib.loads(text) == {}
