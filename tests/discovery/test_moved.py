"""Servers that were moved behind the bridge are what they were in their client's file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery import finder
from bridge.discovery.documents import MalformedError
from bridge.discovery.finder import Discovery, DiscoveryContext, discover, survey
from bridge.discovery.moved import (
    MANIFEST,
    Moved,
    MovedEntry,
    MovedFile,
    manifest_text,
    read_manifest,
    read_moved,
)
from bridge.discovery.report import SkippedServer
from bridge.model import ServerSpec
from tests.discovery.golden_cases import CASES, Case
from tests.discovery.golden_machine import location_of, machine, put
from tests.discovery.writing import write

MOVED = ".config/mcp-code-bridge/moved"
IN_TABLES = {
    case.given: case
    for case in CASES
    if "bare" not in case.given and location_of(case).holds != "plugins"
}
"""Inputs with tables of servers; a list of plugins only names other files."""


def keep(context: DiscoveryContext, original: Path, value: object) -> DiscoveryContext:
    """Record that entries of a file were moved; return the context that finds them."""
    directory = context.home / MOVED
    store = write(directory / f"kept{original.suffix}", value)
    entry = MovedEntry(table=("mcpServers",), name="x", index=0)
    file = MovedFile(original=original, store=store, client="x", entries=(entry,))
    (directory / MANIFEST).write_bytes(manifest_text((file,)))
    return replace(context, moved=directory)


def without_place(each: ServerSpec | SkippedServer) -> object:
    # The index in a list may differ, since entries before it may be gone.
    key = re.sub(r"\[\d+\]$", "[]", each.source.key)
    source = replace(each.source, path="", moved_from="", key=key)
    if isinstance(each, SkippedServer):
        return replace(each, source=source)
    return replace(each, source=source), each.written


def found_in(found: Discovery) -> list[object]:
    return [*map(without_place, found.servers), *map(without_place, found.skipped)]


@pytest.mark.parametrize("case", IN_TABLES.values(), ids=IN_TABLES)
def test_a_moved_file_defines_the_servers_that_it_defined_in_its_place(
    case: Case, tmp_path: Path
) -> None:
    platform = location_of(case).platforms[0]
    context = machine(tmp_path, platform)
    if case.template == "{extra}":
        context = replace(context, extra_config=tmp_path / case.place(platform))
    original = put(tmp_path, case, platform)
    before = discover(context)
    text = original.read_text()
    original.unlink()
    after = discover(keep(context, original, text))
    assert found_in(after) == found_in(before)
    assert {spec.source.moved_from for spec in after.servers} <= {str(original)}


def test_a_server_says_from_where_it_was_moved(context: DiscoveryContext) -> None:
    original = write(context.home / ".cursor" / "mcp.json", {"mcpServers": {}})
    found = discover(keep(context, original, {"mcpServers": {"x": {"command": "x"}}}))
    assert str(found.servers[0].source).endswith(f"(mcpServers.x), moved from {original}")


def test_an_entry_that_is_still_in_its_file_counts_there(context: DiscoveryContext) -> None:
    both = {"mcpServers": {"x": {"command": "x"}}}
    original = write(context.home / ".cursor" / "mcp.json", both)
    found = discover(keep(context, original, both))
    assert [(spec.source.path, len(spec.also)) for spec in found.servers] == [(str(original), 1)]
    assert found.skipped == ()


def test_a_projects_moved_servers_count_as_approved_in_it_alone(context: DiscoveryContext) -> None:
    cautious = replace(context, project_servers="approved")
    original = cautious.cwd / ".mcp.json"
    cautious = keep(cautious, original, {"mcpServers": {"x": {"command": "x"}}})
    assert [spec.name for spec in discover(cautious).servers] == ["x"]
    elsewhere = cautious.home / "other"
    elsewhere.mkdir()
    assert discover(replace(cautious, cwd=elsewhere)).servers == ()
    assert discover(replace(cautious, project_servers="none")).servers == ()


def test_what_the_clients_file_says_of_a_moved_server_still_counts(
    context: DiscoveryContext,
) -> None:
    settings = {"mcpServers": {}, "mcp": {"excluded": ["off"]}}
    original = write(context.home / ".gemini" / "settings.json", settings)
    entries = {"mcpServers": {"on": {"command": "x"}, "off": {"command": "x"}}}
    found = discover(keep(context, original, entries))
    assert [spec.name for spec in found.servers] == ["on"]
    assert [each.reason for each in found.skipped] == ["turned off by mcp.excluded"]


def test_inputs_of_the_clients_file_have_their_defaults(context: DiscoveryContext) -> None:
    inputs = [{"id": "key", "type": "promptString", "default": "given"}]
    original = context.home / ".config" / "Code" / "User" / "mcp.json"
    write(original, {"servers": {}, "inputs": inputs})
    entry = {"command": "x", "env": {"KEY": "${input:key}"}}
    found = discover(keep(context, original, {"servers": {"x": entry}}))
    assert found.servers[0].env == {"KEY": "given"}


def test_a_change_of_the_moved_servers_changes_the_stamp(context: DiscoveryContext) -> None:
    context = replace(context, moved=context.home / MOVED)
    original = context.home / ".cursor" / "mcp.json"
    stamps = [survey(context).stamp()]
    keep(context, original, {"mcpServers": {}})
    stamps.append(survey(context).stamp())
    keep(context, original, {"mcpServers": {"x": {"command": "x"}}})
    stamps.append(survey(context).stamp())
    assert len(set(stamps)) == 3
    assert discover(context).stamp == stamps[-1]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"form": 2, "files": []}', '{"form": 1, "files": [{"original": "/x"}]}'),
        '{"form": 1, "files": [{"original": "/x", "store": "../y", "client": "c", "entries": []}]}',
    ],
)
def test_a_damaged_manifest_is_a_warning(context: DiscoveryContext, text: str) -> None:
    directory = context.home / "moved"
    path = write(directory / MANIFEST, text)
    with pytest.raises(MalformedError, match="are not used"):
        read_manifest(directory)
    found = discover(replace(context, moved=directory))
    assert [(each.path, each.own) for each in found.warnings] == [(str(path), True)]


@pytest.mark.parametrize("moves_meanwhile", [False, True])
def test_the_list_of_moved_servers_is_read_again_only_if_it_has_changed_meanwhile(
    moves_meanwhile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = machine(tmp_path, "linux")
    original = context.home / ".cursor" / "mcp.json"
    context = replace(context, moved=context.home / MOVED)
    read = []

    def read_then_move(directory: Path | None) -> Moved:
        read.append(directory)
        moved = read_moved(directory)
        if moves_meanwhile and len(read) == 1:
            keep(context, original, {"mcpServers": {"x": {"command": "x"}}})
        return moved

    monkeypatch.setattr(finder, "read_moved", read_then_move)
    found = discover(context)
    assert len(read) == (2 if moves_meanwhile else 1)
    assert [spec.name for spec in found.servers] == (["x"] if moves_meanwhile else [])
    assert found.stamp == survey(context).stamp()
