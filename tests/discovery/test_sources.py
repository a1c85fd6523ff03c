"""Sources that are off, and files that an entry names."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from bridge.discovery.finder import DiscoveryContext, discover, survey
from tests.discovery.writing import write


def test_files_of_sources_that_are_off_are_not_watched_either(context: DiscoveryContext) -> None:
    off = replace(context, sources=("-cursor",))
    before = survey(off).stamp()
    write(context.home / ".cursor" / "mcp.json", "{}")
    assert survey(off).stamp() == before


@pytest.mark.parametrize(
    ("text", "entries", "reason"),
    [("A=a\0b", 1, "cannot be passed on"), (f"A={'x' * 200_000}", 8, "insert more than")],
)
def test_what_a_named_file_cannot_bring_in_costs_the_entry(
    context: DiscoveryContext, text: str, entries: int, reason: str
) -> None:
    (context.home / "large.env").write_text(text)
    entry = {"command": "x", "envFile": str(context.home / "large.env")}
    entered = {f"s{n}": entry for n in range(entries)}
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": entered})
    found = discover(context)
    assert len(found.servers) in (0, 5)
    assert all(reason in skipped.reason for skipped in found.skipped)
    assert len(found.servers) + len(found.skipped) == entries


@pytest.mark.parametrize("name", ["pipe", "directory", "loop", "missing", "/dev/zero", "nul\0"])
def test_a_named_file_that_is_none_holds_nothing_up(context: DiscoveryContext, name: str) -> None:
    os.mkfifo(context.home / "pipe")
    (context.home / "directory").mkdir()
    (context.home / "loop").symlink_to("loop")
    entry = {"command": "x", "envFile": str(context.home / name)}
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"s": entry}})
    found = discover(context)
    if "\0" in name:
        assert found.servers == ()
        return
    assert found.servers[0].env == {}
    (warning,) = [warning for warning in found.warnings if warning.key]
    assert "cannot be read" in warning.reason
