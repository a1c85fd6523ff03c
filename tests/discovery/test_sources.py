"""Which clients' files are read, and what an untrusted project may not do through them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.clients import LOCATIONS, SOURCE_IDS
from bridge.discovery.finder import DiscoveryContext, discover, locations_read, survey


@pytest.fixture
def context(tmp_path: Path) -> DiscoveryContext:
    cwd = tmp_path / "home" / "repo"
    cwd.mkdir(parents=True)
    return DiscoveryContext(
        home=tmp_path / "home",
        cwd=cwd,
        platform="linux",
        environ={},
        extra_config=Path("~/extra.json"),
        system_root=tmp_path / "system",
        project_servers="all",
    )


@pytest.fixture
def four(context: DiscoveryContext) -> DiscoveryContext:
    """One server in each of four places."""
    for name, place in (
        ("extra", context.home / "extra.json"),
        ("claude", context.home / ".claude.json"),
        ("cursor", context.home / ".cursor" / "mcp.json"),
        ("project", context.cwd / ".cursor" / "mcp.json"),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"mcpServers": {name: {"command": "x"}}}))
    return context


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ((), ["extra", "claude", "cursor", "project"]),
        (("cursor",), ["extra", "cursor", "project"]),
        (("claude-code", "cursor"), ["extra", "claude", "cursor", "project"]),
        (("-cursor",), ["extra", "claude"]),
        (("-cursor", "-claude-code"), ["extra"]),
        (("zed",), ["extra"]),
    ],
)
def test_only_the_named_sources_are_read_and_the_named_file_always(
    four: DiscoveryContext, sources: tuple[str, ...], names: list[str]
) -> None:
    found = discover(replace(four, sources=sources))
    assert [spec.name for spec in found.servers] == names
    assert found.warnings == ()


@pytest.mark.parametrize("sources", [("cusor",), ("-cusor",)])
def test_a_source_that_is_none_is_named_with_the_nearest_and_all(
    four: DiscoveryContext, sources: tuple[str, ...]
) -> None:
    (warning,) = discover(replace(four, sources=sources)).warnings
    assert str(warning).startswith(
        'MCP_BRIDGE_SOURCES: "cusor" is no source; did you mean cursor? known are claude-code, '
    )
    assert all(name in warning.reason for name in SOURCE_IDS)


def test_files_of_sources_that_are_off_are_not_watched_either(four: DiscoveryContext) -> None:
    off = replace(four, sources=("-cursor",))
    before = survey(off).stamp()
    (four.home / ".cursor" / "mcp.json").write_text("{}")
    assert survey(off).stamp() == before


def test_the_names_of_sources_are_stable() -> None:
    """They stand in people's settings."""
    assert (
        *("claude-code", "mcp-directory", "claude-desktop", "cursor", "vscode", "windsurf"),
        *("codex", "gemini", "zed", "continue", "cline", "opencode", "goose", "lm-studio"),
        *("amazon-q", "kiro", "jetbrains", "antigravity", "copilot", "qwen", "amp", "roo"),
        *("kilo", "trae", "kimi", "droid", "crush", "vibe"),
    ) == SOURCE_IDS
    assert all(locations_read((name,), "linux") for name in SOURCE_IDS)


def test_files_of_a_project_stand_behind_all_files_of_the_user() -> None:
    """A directory one happens to be in cannot replace a server that the user defined."""
    strengths = [row.in_project for row in LOCATIONS]
    assert strengths == sorted(strengths)


@pytest.mark.parametrize("allowed", ["approved", "none"])
def test_a_project_s_file_of_another_client_runs_nothing_where_approval_is_asked_for(
    four: DiscoveryContext, allowed: str
) -> None:
    """Only Claude Code's approvals are known, and they do not speak about such files."""
    approving = {"enableAllProjectMcpServers": True}
    (four.home / ".claude").mkdir()
    (four.home / ".claude" / "settings.json").write_text(json.dumps(approving))
    found = discover(replace(four, project_servers=allowed))  # type: ignore[arg-type]  # of the two
    assert "project" not in {spec.name for spec in found.servers}
    skipped = {each.name for each in found.skipped}
    assert "project" in skipped | {each.name for each in found.proposed}


def test_a_file_that_an_untrusted_project_names_is_not_opened(context: DiscoveryContext) -> None:
    outside = context.home / "private.env"
    outside.write_text("SECRET=s3cret")
    config = context.cwd / ".vscode" / "mcp.json"
    config.parent.mkdir()
    entry = {"command": "x", "envFile": str(outside)}
    config.write_text(json.dumps({"servers": {"s": entry}}))
    trusting_clients = discover(context)
    assert trusting_clients.servers[0].env == {"SECRET": "s3cret"}
    assert trusting_clients.references == (outside,)
    assert discover(replace(context, project_servers="approved")).references == ()


@pytest.mark.parametrize(
    ("text", "entries", "reason"),
    [("A=a\0b", 1, "cannot be passed on"), (f"A={'x' * 200_000}", 8, "beyond")],
)
def test_what_a_named_file_cannot_bring_in_costs_the_entry(
    context: DiscoveryContext, text: str, entries: int, reason: str
) -> None:
    """A variable that no process can have, or one large file for a thousand servers."""
    (context.home / "large.env").write_text(text)
    config = context.home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    entry = {"command": "x", "envFile": str(context.home / "large.env")}
    config.write_text(json.dumps({"mcpServers": {f"s{n}": entry for n in range(entries)}}))
    found = discover(context)
    assert len(found.servers) in (0, 5)
    assert all(reason in skipped.reason for skipped in found.skipped)
    assert len(found.servers) + len(found.skipped) == entries


@pytest.mark.parametrize("name", ["pipe", "directory", "loop", "missing", "/dev/zero", "nul\0"])
def test_a_named_file_that_is_none_holds_nothing_up(context: DiscoveryContext, name: str) -> None:
    os.mkfifo(context.home / "pipe")
    (context.home / "directory").mkdir()
    (context.home / "loop").symlink_to("loop")
    config = context.home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    entry = {"command": "x", "envFile": str(context.home / name)}
    config.write_text(json.dumps({"mcpServers": {"s": entry}}))
    found = discover(context)
    if "\0" in name:
        assert found.servers == ()
        return
    assert found.servers[0].env == {}
    (warning,) = [warning for warning in found.warnings if warning.key]
    assert "cannot be read" in warning.reason
