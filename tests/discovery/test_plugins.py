"""Plugins of Claude Code, and extensions of Gemini CLI and Qwen Code: which of them are on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.finder import Discovery, DiscoveryContext, discover
from tests.discovery.writing import write

ON = {"enabledPlugins": {"alpha@shop": True}}
OFF = {"enabledPlugins": {"alpha@shop": False}}


def install(
    context: DiscoveryContext, *, servers: object = None, **record: object
) -> tuple[Path, Path]:
    """Install the plugin `alpha`; return its directory and the list of the installed ones."""
    plugins = context.home / ".claude" / "plugins"
    root = plugins / "cache" / "alpha"
    write(root / ".mcp.json", servers or {"mcpServers": {"one": {"command": "one"}}})
    listed = {"scope": "user", "installPath": str(root), **record}
    index = plugins / "installed_plugins.json"
    write(index, {"version": 2, "plugins": {"alpha@shop": [listed]}})
    return root, index


def names(found: Discovery) -> list[str]:
    return [spec.name for spec in found.servers]


@pytest.mark.parametrize(
    ("user", "project", "on"),
    [
        (ON, {}, True),
        ({}, {}, False),
        (OFF, ON, False),
        (ON, OFF, False),
        ({}, ON, False),
    ],
)
def test_a_project_can_turn_a_plugin_off_and_never_on(
    context: DiscoveryContext, user: object, project: object, on: bool
) -> None:
    install(context)
    write(context.home / ".claude" / "settings.json", user)
    write(context.cwd / ".claude" / "settings.json", project)
    assert names(discover(context)) == (["plugin:alpha:one"] if on else [])


def test_a_plugin_that_was_installed_for_a_project_counts_there_alone(
    context: DiscoveryContext,
) -> None:
    install(context, scope="project", projectPath=str(context.cwd))
    write(context.cwd / ".claude" / "settings.json", ON)
    assert names(discover(context)) == ["plugin:alpha:one"]
    elsewhere = context.home / "elsewhere"
    write(elsewhere / ".claude" / "settings.json", ON)
    assert names(discover(replace(context, cwd=elsewhere))) == []


def test_the_company_decides_over_plugins_before_anyone(context: DiscoveryContext) -> None:
    install(context)
    write(context.home / ".claude" / "settings.json", ON)
    write(context.system_root / "etc" / "claude-code" / "managed-settings.json", OFF)
    assert names(discover(context)) == []


def test_a_list_of_plugins_inside_the_project_is_not_read(context: DiscoveryContext) -> None:
    inside = context.cwd / "claude"
    write(inside / "settings.json", ON)
    root = inside / "alpha"
    write(root / ".mcp.json", {"one": {"command": "one"}})
    write(
        inside / "plugins" / "installed_plugins.json",
        {"plugins": {"alpha@shop": [{"scope": "user", "installPath": str(root)}]}},
    )
    moved = replace(context, environ={"CLAUDE_CONFIG_DIR": str(inside)})
    assert names(discover(moved)) == []


def test_a_plugin_s_manifest_names_files_inside_of_its_directory_only(
    context: DiscoveryContext,
) -> None:
    root, _ = install(context)
    write(context.home / ".claude" / "settings.json", ON)
    write(root / "more.json", {"two": {"command": "two"}})
    write(root.parent / "outside.json", {"three": {"command": "three"}})
    files = ["./more.json", "../outside.json", str(root.parent / "outside.json")]
    write(root / ".claude-plugin" / "plugin.json", {"name": "alpha", "mcpServers": files})
    assert names(discover(context)) == ["plugin:alpha:two", "plugin:alpha:one"]


def test_a_change_of_a_plugin_s_file_is_noticed(context: DiscoveryContext) -> None:
    root, index = install(context)
    write(context.home / ".claude" / "settings.json", ON)
    found = discover(context)
    assert root / ".mcp.json" in found.references
    write(index, {"plugins": {}})
    assert discover(context).stamp != found.stamp


@pytest.mark.parametrize(
    "index", [[], {"plugins": []}, {"plugins": {"a@b": [{"installPath": "relative"}, 5, None]}}]
)
def test_a_broken_list_of_plugins_brings_nothing(context: DiscoveryContext, index: object) -> None:
    write(context.home / ".claude" / "plugins" / "installed_plugins.json", index)
    assert names(discover(context)) == []


def test_a_plugin_s_server_may_be_denied_or_switched_off_by_its_whole_name(
    context: DiscoveryContext,
) -> None:
    install(context)
    denied = {**ON, "deniedMcpServers": [{"serverName": "plugin:alpha:one"}]}
    write(context.home / ".claude" / "settings.json", denied)
    assert names(discover(context)) == []


@pytest.mark.parametrize("client", ["gemini", "qwen"])
@pytest.mark.parametrize(
    ("rules", "on"),
    [
        ([], True),
        (["!@CWD@/*"], False),
        (["!@CWD@/"], False),
        (["!@HOME@/*", "@CWD@/*"], True),
        (["!@HOME@/"], True),
        (["!@CWD@x/*"], True),
        ("odd", True),
        ([5], True),
    ],
)
def test_an_extension_is_on_unless_the_last_rule_for_the_directory_says_otherwise(
    context: DiscoveryContext, client: str, rules: object, on: bool
) -> None:
    extensions = context.home / f".{client}" / "extensions"
    write(
        extensions / "maps" / f"{client}-extension.json",
        {"name": "maps", "mcpServers": {"routes": {"command": "routes"}}},
    )
    if isinstance(rules, list):
        places = {"@CWD@": str(context.cwd), "@HOME@": str(context.home)}
        for mark, place in places.items():
            rules = [r.replace(mark, place) if isinstance(r, str) else r for r in rules]
    write(extensions / "extension-enablement.json", {"maps": {"overrides": rules}})
    assert names(discover(context)) == (["routes"] if on else [])


def test_an_extension_never_takes_the_name_of_a_server_of_the_settings(
    context: DiscoveryContext,
) -> None:
    gemini = context.home / ".gemini"
    write(
        gemini / "extensions" / "maps" / "gemini-extension.json",
        {"name": "maps", "mcpServers": {"routes": {"command": "theirs"}}},
    )
    write(gemini / "settings.json", {"mcpServers": {"routes": {"command": "mine"}}})
    (spec,) = discover(context).servers
    assert spec.command == "mine"


def test_an_extension_s_own_places_are_filled_in(context: DiscoveryContext) -> None:
    entry = {
        "command": "x",
        "args": ["${extensionPath}${/}a", "${pathSeparator}", "${workspacePath}"],
    }
    extension = context.home / ".gemini" / "extensions" / "maps"
    write(extension / "gemini-extension.json", {"name": "maps", "mcpServers": {"routes": entry}})
    (spec,) = discover(context).servers
    assert spec.args == (f"{extension}/a", "/", str(context.cwd))
