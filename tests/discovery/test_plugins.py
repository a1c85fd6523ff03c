"""Plugins of Claude Code, and extensions of Gemini CLI and Qwen Code: which of them are on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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


def test_a_plugin_that_was_installed_for_a_project_counts_there_alone(
    context: DiscoveryContext,
) -> None:
    install(context, scope="project", projectPath=str(context.cwd))
    write(context.cwd / ".claude" / "settings.json", ON)
    assert names(discover(context)) == ["plugin:alpha:one"]
    elsewhere = context.home / "elsewhere"
    write(elsewhere / ".claude" / "settings.json", ON)
    assert names(discover(replace(context, cwd=elsewhere))) == []


def test_a_change_of_a_plugin_s_file_is_noticed(context: DiscoveryContext) -> None:
    root, index = install(context)
    write(context.home / ".claude" / "settings.json", ON)
    found = discover(context)
    assert root / ".mcp.json" in found.references
    write(index, {"plugins": {}})
    assert discover(context).stamp != found.stamp
