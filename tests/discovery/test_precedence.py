"""The order of the table is the documented precedence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Location
from bridge.discovery.finder import DiscoveryContext, discover
from bridge.discovery.locations import fill, find_project, path_variables
from tests.discovery.writing import write

TABLE = [
    row
    for row in LOCATIONS
    if (row.client, row.scope) != ("Claude Code", "managed")
    and not row.unless
    and row.holds == "servers"
    and row.dialect.server_keys
]
"""All rows but fallbacks, plugins and extensions, and the managed file, which excludes all others.
"""

STEP = 12


def servers(**commands: str) -> dict[str, object]:
    return {"mcpServers": {name: {"command": command} for name, command in commands.items()}}


def in_its_spelling(location: Location, command: str) -> str:
    """Return a file of this row with one server "same"; its YAML is JSON."""
    dialect = location.dialect
    if location.format == "toml":
        return f'[mcp_servers.same]\ncommand = "{command}"'
    entry: dict[str, object] = {
        dialect.command_keys[0]: [command] if dialect.command_list else command
    }
    table: object = [{"name": "same", **entry}] if dialect.listed else {"same": entry}
    place = dialect.server_keys[0]
    for key in reversed([place] if dialect.flat_keys else place.split(".")):
        table = {key: table}
    return json.dumps(table)


def test_every_place_outranks_those_after_it_in_the_table(context: DiscoveryContext) -> None:
    for platform in ("linux", "darwin", "win32"):
        base = replace(
            context,
            platform=platform,
            home=context.home / platform,
            cwd=context.home / platform / "repo",
            environ={
                "ProgramFiles": str(context.home / platform / "programs"),
                "ProgramData": str(context.home / platform / "data"),
                "OPENCODE_CONFIG": str(context.home / platform / "opencode.jsonc"),
                "OPENCODE_CONFIG_DIR": str(context.home / platform / "opencode-directory"),
            },
            system_root=context.home / platform / "system",
            extra_config=Path("~/extra.json"),
        )
        base.cwd.mkdir(parents=True)
        places = path_variables(base, find_project(base.cwd))
        table = [row for row in TABLE if platform in row.platforms]
        expected = []
        state: dict[str, object] = {}
        for rank, location in enumerate(table):
            path = fill(location.template, places)[0]
            path = Path(str(path).replace("*", "one"))
            expected.append((f"rank-{rank}", str(path)))
            content = servers(same=f"rank-{rank}")
            if location.template == "{claude_state}/.claude.json":
                per_project = location.dialect.per_project
                state |= {"projects": {str(base.cwd): content}} if per_project else content
                write(path, state)
            else:
                write(path, in_its_spelling(location, f"rank-{rank}"))
        while expected:
            found = discover(base)
            assert [(spec.command, spec.source.path) for spec in found.servers] == expected[:1]
            assert [skipped.source.path for skipped in found.skipped] == [
                p for _, p in expected[1:]
            ]
            for skipped in found.skipped:
                assert skipped.reason.startswith(f"shadowed by {expected[0][1]} (")
            # Each search shows the whole order, so several rows can go at once.
            for _, gone in expected[:STEP]:
                path = Path(gone)
                if path.name == ".claude.json" and "projects" in state:
                    del state["projects"]
                    write(path, state)
                else:
                    path.unlink()
            del expected[:STEP]


@pytest.mark.parametrize(
    ("row", "fallback", "stronger"),
    [
        ("{config}/amp/settings.jsonc", ".config/amp/settings.jsonc", ".config/amp/settings.json"),
        ("{within}/.amp/settings.jsonc", "repo/.amp/settings.jsonc", "repo/.amp/settings.json"),
        ("{within}/.github/mcp.json", "repo/.github/mcp.json", "repo/.mcp.json"),
    ],
)
def test_a_fallback_is_read_only_where_the_file_before_it_is_missing(
    context: DiscoveryContext, row: str, fallback: str, stronger: str
) -> None:
    context = replace(context, cwd=context.home / "repo")
    location = next(each for each in LOCATIONS if each.template == row)
    write(context.home / fallback, in_its_spelling(location, "fallback"))
    before = discover(context)
    assert [spec.command for spec in before.servers] == ["fallback"]
    write(context.home / stronger, "{}")
    after = discover(context)
    assert after.servers == ()
    assert before.stamp != after.stamp
