"""What the user, or their company, forbade in Claude Code stays forbidden here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.finder import Discovery, DiscoveryContext, discover, survey
from tests.discovery.writing import write

pytestmark = pytest.mark.guarantee("forbidden-servers", "names-of-the-user")

GIT = {"command": "mcp-git", "args": ["--repository", "."]}
WEB = {"type": "http", "url": "https://mcp.example.com/v1"}
USER = {"mcpServers": {"git": GIT, "web": WEB}}


@pytest.fixture
def company(context: DiscoveryContext) -> Path:
    """Where the company keeps its settings; the user has two servers in each of two clients."""
    write(context.home / ".claude.json", USER)
    cursor = {"mcpServers": {"git2": GIT, "web2": WEB}}
    write(context.home / ".cursor" / "mcp.json", cursor)
    return context.system_root / "etc" / "claude-code"


def names(found: Discovery) -> list[str]:
    return [spec.name for spec in found.servers]


def reasons(found: Discovery) -> dict[str, str]:
    return {each.name: each.reason for each in found.skipped}


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ({"serverName": "git"}, ["web", "git2", "web2"]),
        ({"serverCommand": ["mcp-git", "--repository", "."]}, ["web", "web2"]),
        ({"serverCommand": ["mcp-git"]}, ["git", "web", "git2", "web2"]),
        ({"serverUrl": "https://*.example.com/*"}, ["git", "git2"]),
        ({"serverUrl": "HTTPS://MCP.example.com/v1"}, ["git", "git2"]),
        ({"serverUrl": "https://other.example/*"}, ["git", "web", "git2", "web2"]),
    ],
)
def test_what_the_company_denies_is_denied_in_every_client_s_files(
    context: DiscoveryContext, company: Path, entry: dict[str, object], left: list[str]
) -> None:
    path = write(company / "managed-settings.json", {"deniedMcpServers": [entry]})
    found = discover(context)
    assert names(found) == left
    assert all(str(path) in reason for reason in reasons(found).values())


@pytest.mark.parametrize(
    "url",
    [
        "https://user@mcp.example.com/v1",
        "https://mcp.example.com:443/v1",
        "https://MCP.EXAMPLE.COM/v1",
        "https://mcp.example.com./v1",
    ],
)
def test_another_spelling_of_a_denied_address_is_denied(
    context: DiscoveryContext, company: Path, url: str
) -> None:
    write(context.home / ".claude.json", {"mcpServers": {"web": {"type": "http", "url": url}}})
    denied = {"deniedMcpServers": [{"serverUrl": "https://mcp.example.com/*"}]}
    write(company / "managed-settings.json", denied)
    assert "web" not in names(discover(context))


def test_the_user_s_own_denials_are_about_claude_code_s_servers(
    context: DiscoveryContext, company: Path
) -> None:
    denied = {"deniedMcpServers": [{"serverCommand": ["mcp-git", "--repository", "."]}]}
    write(context.home / ".claude" / "settings.json", denied)
    assert names(discover(context)) == ["web", "git2", "web2"]


def test_a_repository_denies_the_user_nothing(context: DiscoveryContext, company: Path) -> None:
    denied = {"deniedMcpServers": [{"serverName": "git"}], "allowedMcpServers": []}
    write(context.cwd / ".claude" / "settings.json", denied)
    assert names(discover(context)) == ["git", "web", "git2", "web2"]


@pytest.mark.parametrize(
    ("managed", "user", "left"),
    [
        ([], None, []),
        ([{"serverName": "git"}], None, ["git"]),
        ([{"serverName": "git"}], [{"serverName": "web"}], ["git", "web"]),
        ([{"serverName": "git"}, {"serverCommand": ["other"]}], None, []),
        ([{"serverName": "web"}, {"serverUrl": "https://other.example/*"}], None, []),
        ([{"serverUrl": "https://*.example.com/*"}], None, ["web"]),
        (None, [{"serverName": "git"}], ["git"]),
        ("git", None, []),
        ([{"serverName": "git", "serverUrl": "*"}], None, []),
    ],
)
def test_only_what_is_allowed_of_claude_code_s_servers_is_used(
    context: DiscoveryContext, company: Path, managed: object, user: object, left: list[str]
) -> None:
    for path, allowed in (
        (company / "managed-settings.json", managed),
        (context.home / ".claude" / "settings.json", user),
    ):
        if allowed is not None:
            write(path, {"allowedMcpServers": allowed})
    assert names(discover(context)) == [*left, "git2", "web2"]


def test_a_wildcard_in_an_allowed_host_does_not_reach_into_the_path(
    context: DiscoveryContext, company: Path
) -> None:
    url = "https://evil.example/x.internal.corp/mcp"
    write(context.home / ".claude.json", {"mcpServers": {"web": {"type": "http", "url": url}}})
    allowed = {"allowedMcpServers": [{"serverUrl": "https://*.internal.corp/*"}]}
    write(company / "managed-settings.json", allowed)
    assert "web" not in names(discover(context))


def test_a_company_can_keep_permissions_to_itself_and_denials_go_first(
    context: DiscoveryContext, company: Path
) -> None:
    allowed = {"allowedMcpServers": [{"serverName": "git"}], "allowManagedMcpServersOnly": True}
    write(company / "managed-settings.json", allowed)
    mine = {"allowedMcpServers": [{"serverName": "web"}]}
    write(context.home / ".claude" / "settings.json", mine)
    assert names(discover(context)) == ["git", "git2", "web2"]
    more = {"deniedMcpServers": [{"serverName": "git"}]}
    write(company / "managed-settings.d" / "10-more.json", more)
    assert names(discover(context)) == ["git2", "web2"]


def test_beside_the_company_s_file_claude_code_has_no_other_servers(
    context: DiscoveryContext, company: Path
) -> None:
    path = write(company / "managed-mcp.json", {"mcpServers": {"theirs": {"command": "x"}}})
    write(context.cwd / ".mcp.json", {"mcpServers": {"project": {"command": "x"}}})
    found = discover(context)
    assert names(found) == ["theirs", "git2", "web2"]
    assert str(path) in reasons(found)["git"]
    path.write_text("{")
    assert names(discover(context)) == ["git2", "web2"]


def test_settings_of_the_company_that_cannot_be_read_forbid(
    context: DiscoveryContext, company: Path
) -> None:
    path = write(company / "managed-settings.json", "{")
    found = discover(context)
    assert names(found) == ["git2", "web2"]
    assert "cannot be read" in reasons(found)["git"]
    assert str(path) in reasons(found)["git"]


def test_what_is_switched_off_for_the_project_in_claude_code_is_off(
    context: DiscoveryContext, company: Path
) -> None:
    state = {**USER, "projects": {str(context.cwd): {"disabledMcpServers": ["git", 7]}}}
    write(context.home / ".claude.json", state)
    found = discover(context)
    assert names(found) == ["web", "git2", "web2"]
    assert "disabledMcpServers" in reasons(found)["git"]
    elsewhere = context.home / "other"
    elsewhere.mkdir()
    assert "git" in names(discover(replace(context, cwd=elsewhere)))


@pytest.mark.parametrize(
    ("file", "said", "left"),
    [
        ("settings.json", {"mcp": {"excluded": ["a"]}}, ["b"]),
        ("settings.json", {"mcp": {"allowed": ["a"]}}, ["a"]),
        ("settings.json", {"mcp": {"allowed": []}}, ["a", "b"]),
        ("settings.json", {"mcp": ["a"]}, ["a", "b"]),
        ("mcp-server-enablement.json", {"a": {"enabled": False}}, ["b"]),
        ("mcp-server-enablement.json", {"a": {"enabled": True}, "b": 7}, ["a", "b"]),
    ],
)
def test_what_gemini_has_switched_off_is_off_in_all_its_files(
    context: DiscoveryContext, file: str, said: dict[str, object], left: list[str]
) -> None:
    both = {"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}}
    write(context.cwd / ".gemini" / "settings.json", both)
    write(context.system_root / "etc" / "gemini-cli" / "settings.json", both)
    path = write(context.home / ".gemini" / file, said)
    found = discover(context)
    assert names(found) == left
    off = [each for each in found.skipped if "switched off in Gemini CLI" in each.reason]
    assert {str(path) in each.reason for each in off} <= {True}
    assert bool(off) == (len(left) < 2)


def test_what_qwen_excludes_for_the_user_is_off_in_all_its_files(
    context: DiscoveryContext,
) -> None:
    write(context.cwd / ".qwen" / "settings.json", {"mcpServers": {"a": {"command": "x"}}})
    write(context.home / ".qwen" / "settings.json", {"mcp": {"excluded": ["a"]}})
    found = discover(context)
    assert names(found) == []
    assert "switched off in Qwen Code" in found.skipped[0].reason


def test_a_project_s_lists_of_gemini_do_not_reach_the_user_s(context: DiscoveryContext) -> None:
    write(context.home / ".gemini" / "settings.json", {"mcpServers": {"a": {"command": "x"}}})
    write(context.cwd / ".gemini" / "settings.json", {"mcp": {"excluded": ["a"]}})
    assert names(discover(context)) == ["a"]


def test_no_project_gets_the_name_of_a_server_that_is_forbidden(
    context: DiscoveryContext, company: Path
) -> None:
    denied = {"deniedMcpServers": [{"serverCommand": ["mcp-git", "--repository", "."]}]}
    write(company / "managed-settings.json", denied)
    write(context.cwd / ".mcp.json", {"mcpServers": {"git": {"command": "evil"}}})
    assert names(discover(context)) == ["web", "web2"]


def test_a_change_of_these_files_is_noticed(context: DiscoveryContext, company: Path) -> None:
    before = survey(context).stamp()
    write(company / "managed-settings.json", {})
    between = survey(context).stamp()
    write(company / "managed-settings.d" / "a.json", {})
    assert len({before, between, survey(context).stamp()}) == 3


@pytest.mark.parametrize(
    ("matches", "action", "rejected"),
    [
        ({"command": "npx", "args": "-y evil*"}, "reject", ["a", "web"]),
        ({"command": "npx -y *"}, "reject", ["a", "b", "web"]),
        ({"command": "/evil/"}, "reject", ["a", "b", "web"]),
        ({"command": "/usr/bin/x"}, "reject", ["web"]),
        ({"url": "https://h*"}, "allow", []),
        ({"command": "*"}, "allow", ["web"]),
        ({}, "reject", ["web"]),
    ],
)
def test_amp_s_servers_are_used_as_its_first_matching_rule_says(
    context: DiscoveryContext, matches: object, action: str, rejected: list[str]
) -> None:
    commands = {"a": "evil-server", "b": "good-server"}
    servers: dict[str, dict[str, object]] = {
        name: {"command": "npx", "args": ["-y", package]} for name, package in commands.items()
    }
    write(
        context.home / ".config" / "amp" / "settings.json",
        {
            "amp.mcpServers": servers | {"web": {"url": "https://h/mcp"}},
            "amp.mcpPermissions": [
                {"matches": matches, "action": action},
                {"matches": {"url": "*"}, "action": "reject"},
            ],
        },
    )
    found = discover(context)
    assert [each.name for each in found.skipped] == rejected
    assert all("rejected by amp.mcpPermissions in" in each.reason for each in found.skipped)
