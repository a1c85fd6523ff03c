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


def test_a_change_of_these_files_is_noticed(context: DiscoveryContext, company: Path) -> None:
    before = survey(context).stamp()
    write(company / "managed-settings.json", {})
    between = survey(context).stamp()
    write(company / "managed-settings.d" / "a.json", {})
    assert len({before, between, survey(context).stamp()}) == 3
