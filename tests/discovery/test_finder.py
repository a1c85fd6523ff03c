"""Discovery as a whole, on a home and a project made for the test."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.documents import MAX_FILE_BYTES
from bridge.discovery.files import MAX_PROJECT_FILE_BYTES
from bridge.discovery.finder import Discovery, DiscoveryContext, discover, survey
from bridge.discovery.parser import MAX_SERVERS
from tests.discovery.writing import write


def servers(**commands: str) -> dict[str, object]:
    return {"mcpServers": {name: {"command": command} for name, command in commands.items()}}


def names(found: Discovery) -> list[str]:
    return [spec.name for spec in found.servers]


def test_files_of_a_project_are_read_up_to_a_bound_for_all_of_them(
    context: DiscoveryContext,
) -> None:
    blanks = " " * (MAX_PROJECT_FILE_BYTES - 100)
    for number in range(6):
        text = json.dumps({"command": "c"}) + blanks
        write(context.cwd / "mcp-servers" / f"s{number}.json", text)
    write(context.home / ".claude.json", json.dumps(servers(mine="c")) + blanks * 3)
    found = discover(context)
    assert names(found) == ["mine", "s0", "s1", "s2", "s3"]
    assert ["larger than" in warning.reason for warning in found.warnings] == [True, True]


@pytest.mark.guarantee("written-configuration")
@pytest.mark.parametrize("by_link", [False, True])
def test_no_file_that_programs_may_write_to_defines_a_server(
    context: DiscoveryContext, tmp_path: Path, by_link: bool
) -> None:
    place = context.cwd / ".mcp.json"
    given = tmp_path / "given"
    write(given / "file.json" if by_link else place, servers(a="c"))
    if by_link:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(given / "file.json")
    assert names(discover(context)) == ["a"]
    exposed = (given if by_link else context.cwd,)
    found = discover(replace(context, exposed=exposed))
    assert names(found) == []
    assert "programs may write" in found.warnings[0].reason


def test_files_that_cannot_be_used_are_named_and_the_rest_loads(context: DiscoveryContext) -> None:
    folder = context.home / "MCPs"
    write(folder / "good.json", {"command": "c"})
    os.truncate(write(folder / "big.json", ""), MAX_FILE_BYTES + 1)
    write(folder / "list.json", [])
    write(folder / "comment.json", '{"command": "c" // why\n}')
    (folder / "latin.json").write_bytes(b'{"command": "\xe9"}')
    (folder / "dir.json").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "gone.json").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.json")
    found = discover(context)
    assert names(found) == ["good"]
    said = {Path(warning.path).stem: warning.reason for warning in found.warnings}
    assert said == {
        "big": f"it is larger than {MAX_FILE_BYTES} bytes",
        "comment": said["comment"],
        "dir": "it is not a regular file",
        "latin": "not valid UTF-8 (byte 13)",
        "list": "the file must hold an object, not a list",
        "loop": "it cannot be read: Too many levels of symbolic links",
        "pipe": "it is not a regular file",
    }
    assert "comment" in said["comment"]


def test_an_unlistable_directory_is_warned_about(context: DiscoveryContext) -> None:
    (context.home / "MCPs").symlink_to("MCPs")
    assert [str(said) for said in discover(context).warnings] == [
        f"{context.home}/MCPs: it cannot be read: Too many levels of symbolic links"
    ]


@pytest.mark.parametrize(
    "at",
    [
        *("home/.claude.json", "home/MCPs/new.json", "home/.config/mcp/servers/new.json"),
        *("home/repo/.mcp.json", "home/.mcp.json", "home/repo/mcp-servers/new.json"),
        *("home/repo/.claude/settings.local.json", "home/.claude/settings.json"),
        *("home/extra.json", "system/etc/claude-code/managed-mcp.json"),
        "system/etc/claude-code/managed-settings.json",
    ],
)
def test_the_stamp_follows_files_that_appear_change_and_vanish(
    context: DiscoveryContext, tmp_path: Path, at: str
) -> None:
    context = replace(context, extra_config=Path("~/extra.json"))
    stamps = [survey(context).stamp()]
    file = write(tmp_path / at, "{}")
    stamps.append(survey(context).stamp())
    write(file, '{"a": 1}')
    stamps.append(survey(context).stamp())
    replacement = write(file.with_name("replacement"), '{"b": 1}')
    os.utime(replacement, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    replacement.rename(file)
    stamps.append(survey(context).stamp())
    assert len(set(stamps)) == 4
    file.unlink()
    assert survey(context).stamp() == stamps[0]


def test_a_projects_files_define_so_many_servers_together_and_keep_out_no_others(
    context: DiscoveryContext,
) -> None:
    for file in range(4):
        servers = {f"s{file}_{n}": {"command": "x"} for n in range(MAX_SERVERS // 2 - 1)}
        write(context.cwd / ".amazonq" / "agents" / f"a{file}.json", {"mcpServers": servers})
    write(context.home / ".gemini" / "settings.json", {"mcpServers": {"own": {"command": "x"}}})
    found = discover(replace(context, project_servers="approved"))
    assert [spec.name for spec in found.servers] == ["own"]
    assert len(found.proposed) == MAX_SERVERS
    (warning,) = found.warnings
    assert warning.path.endswith("a2.json")
    assert "only the first 500 servers are read" in warning.reason


def test_what_the_bridges_own_settings_name_is_told_apart(context: DiscoveryContext) -> None:
    extra = context.home / "extra.json"
    for file in (extra, context.home / ".claude.json"):
        file.write_text("{")
    found = discover(replace(context, extra_config=extra, sources=("-nosuch",)))
    assert "the-secret" not in repr(context)
    assert {warning.path: warning.own for warning in found.warnings} == {
        "MCP_BRIDGE_SOURCES": True,
        str(extra): True,
        str(context.home / ".claude.json"): False,
    }


def test_a_server_is_equal_whatever_other_files_say(context: DiscoveryContext) -> None:
    write(context.home / ".claude.json", servers(same="x"))
    (before,) = discover(context).servers
    other = {"command": "x", "disabledTools": ["t"], "timeout": 9000}
    write(context.home / ".kiro" / "settings" / "mcp.json", {"mcpServers": {"same": other}})
    assert discover(context).servers == (before,)


def test_a_change_of_a_plugin_or_of_the_company_s_directory_is_noticed(
    context: DiscoveryContext,
) -> None:
    root = context.home / ".claude" / "plugins" / "alpha"
    write(root / ".mcp.json", servers(one="x"))
    index = root.with_name("installed_plugins.json")
    write(index, {"plugins": {"alpha@shop": [{"scope": "user", "installPath": str(root)}]}})
    write(context.home / ".claude" / "settings.json", {"enabledPlugins": {"alpha@shop": True}})
    found = discover(context)
    assert root / ".mcp.json" in found.references
    write(index, {"plugins": {}})
    stamps = {found.stamp, survey(context).stamp()}
    write(context.system_root / "etc" / "claude-code" / "managed-settings.d" / "a.json", {})
    assert len({*stamps, survey(context).stamp()}) == 3
