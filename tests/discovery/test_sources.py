"""Which clients' files are read, and what an untrusted project may not do through them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.clients import SOURCE_IDS
from bridge.discovery.finder import DiscoveryContext, discover, survey


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
