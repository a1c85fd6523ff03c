"""The configuration files of all clients, as data.

`LOCATIONS` is in order of precedence: the first file that defines a name wins, and a weaker
definition is reported as shadowed. Files of the working directory come last, so that a repository
cannot take the name of a user's server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.discovery import client_dialects as dialects
from bridge.discovery.dialect import Dialect, Format, Location, Platform

_LINUX: tuple[Platform, ...] = ("linux",)
_MAC: tuple[Platform, ...] = ("darwin",)
_WINDOWS: tuple[Platform, ...] = ("win32",)

CLIENTS: Mapping[str, tuple[str, Format, Dialect]] = {
    "": ("MCP_SERVERS_CONFIG", "by suffix", dialects.GENERIC_OR_BARE),
    "cursor": ("Cursor", "jsonc", dialects.CURSOR),
    "vscode": ("VS Code", "jsonc", dialects.VSCODE),
    "windsurf": ("Windsurf", "jsonc", dialects.WINDSURF),
    "codex": ("Codex", "toml", dialects.CODEX),
    "gemini": ("Gemini CLI", "json with comments", dialects.GEMINI),
    "zed": ("Zed", "jsonc", dialects.ZED),
    "continue": ("Continue", "yaml", dialects.CONTINUE_YAML),
    "cline": ("Cline", "json", dialects.CLINE),
    "goose": ("Goose", "yaml", dialects.GOOSE),
    "lm-studio": ("LM Studio", "jsonc", dialects.LM_STUDIO),
    "amazon-q": ("Amazon Q", "json", dialects.AMAZON_Q),
    "kiro": ("Kiro", "jsonc", dialects.KIRO),
    "jetbrains": ("JetBrains", "jsonc", dialects.JUNIE),
    "antigravity": ("Antigravity", "jsonc", dialects.ANTIGRAVITY),
    "copilot": ("Copilot CLI", "jsonc", dialects.COPILOT),
    "qwen": ("Qwen Code", "json with comments", dialects.QWEN),
    "amp": ("Amp", "jsonc", dialects.AMP),
    "roo": ("Roo Code", "json", dialects.ROO),
    "kilo": ("Kilo Code", "jsonc", dialects.KILO),
    "trae": ("Trae", "jsonc", dialects.TRAE),
    "kimi": ("Kimi Code", "json", dialects.KIMI),
    "droid": ("Droid", "json with comments", dialects.DROID),
    "crush": ("Crush", "json", dialects.CRUSH),
    "vibe": ("Mistral Vibe", "toml", dialects.VIBE),
    "claude-code": ("Claude Code", "json", dialects.CLAUDE_CODE_STATE),
    "claude-desktop": ("Claude Desktop", "json", dialects.CLAUDE_DESKTOP),
    "mcp-directory": ("MCP directory", "json", dialects.GENERIC_OR_BARE),
    "opencode": ("OpenCode", "jsonc", dialects.OPENCODE),
    "claude-code.strict": ("Claude Code", "json", dialects.CLAUDE_CODE),
    "claude-code.local": ("Claude Code", "json", dialects.CLAUDE_CODE_LOCAL),
    "claude-code.settings": ("Claude Code", "json", dialects.CLAUDE_CODE_SETTINGS),
    "vscode.settings": ("VS Code", "jsonc", dialects.VSCODE_SETTINGS),
    "continue.json": ("Continue", "json with comments", dialects.CONTINUE_JSON),
    "opencode.first": ("OpenCode", "jsonc", dialects.GENERIC),
    "jetbrains.copilot": ("JetBrains", "jsonc", dialects.INTELLIJ),
    "kilo.old": ("Kilo Code", "json", dialects.ROO),
}
"""The display name, format and dialect of each source's files.

A suffix after a dot marks further files of a source.
"""


def _files(id: str, scope: str, *templates: str, **more: Any) -> tuple[Location, ...]:
    name, format, dialect = CLIENTS[id]
    return tuple(
        Location(
            id=id.partition(".")[0],
            client=name,
            scope=scope,
            template=template,
            format=format,
            dialect=dialect,
            in_project=scope == "project",
            **more,
        )
        for template in templates
    )


_DESKTOP_FILE = "Claude/claude_desktop_config.json"

MANAGED: tuple[tuple[str, tuple[Platform, ...]], ...] = (
    ("{system}/etc/claude-code", _LINUX),
    ("{system}/Library/Application Support/ClaudeCode", _MAC),
    ("{programs}/ClaudeCode", _WINDOWS),
)
"""Directories of Claude Code's managed settings."""

_CLAUDE_USER = (
    *_files("", "extra", "{extra}"),
    *(
        row
        for folder, only in MANAGED
        for row in _files(
            "claude-code.strict", "managed", f"{folder}/managed-mcp.json", platforms=only
        )
    ),
    *_files("claude-code.local", "local", "{claude_state}/.claude.json"),
    *_files("claude-code", "user", "{claude_state}/.claude.json"),
    *_files("claude-code.settings", "user", "{claude_settings}/settings.json"),
    *_files("mcp-directory", "user", "{home}/.config/mcp/servers/*.json", "{home}/MCPs/*.json"),
    *_files("claude-desktop", "user", f"{{config}}/{_DESKTOP_FILE}", platforms=_LINUX),
    *_files("claude-desktop", "user", f"{{library}}/{_DESKTOP_FILE}", platforms=_MAC),
    # The Microsoft Store build redirects %APPDATA% to its own directory.
    *_files(
        "claude-desktop",
        "user",
        f"{{packages}}/Claude_*/LocalCache/Roaming/{_DESKTOP_FILE}",
        platforms=_WINDOWS,
    ),
    *_files("claude-desktop", "user", f"{{appdata}}/{_DESKTOP_FILE}", platforms=_WINDOWS),
    *_files(
        "mcp-directory",
        "user",
        "{library}/Claude Code/mcp/servers/*.json",
        "{library}/Claude/mcp/servers/*.json",
        platforms=_MAC,
    ),
    *_files(
        "claude-code",
        "user",
        "{library}/Claude Code/claude_code_config.json",
        "{library}/Claude/claude_code_config.json",
        platforms=_MAC,
    ),
)

_CLAUDE_PROJECT = (
    *_files("claude-code.strict", "project", "{upwards}/.mcp.json", approvable=True),
    *_files(
        "claude-code.settings",
        "project",
        "{workspace}/.claude/settings.local.json",
        "{workspace}/.claude/settings.json",
    ),
    *_files("mcp-directory", "project", "{cwd}/mcp-servers/*.json"),
    *_files("claude-code", "project", "{cwd}/claude_code_config.json"),
    *_files("claude-desktop", "project", "{cwd}/claude_desktop_config.json"),
)


_OTHER_USER = (
    *_files("cursor", "user", "{home}/.cursor/mcp.json"),
    *_files("vscode", "user", "{vscode}/mcp.json"),
    *_files("vscode.settings", "user", "{vscode}/settings.json"),
    *_files("vscode", "profile", "{vscode}/profiles/*/mcp.json"),
    *_files(
        "windsurf",
        "user",
        "{devin}/config.json",
        "{devin}/mcp_config.json",
        "{home}/.codeium/windsurf/mcp_config.json",
        "{home}/.codeium/mcp_config.json",
    ),
    *_files("codex", "user", "{codex}/config.toml"),
    *_files("codex", "system", "{codex_system}/config.toml"),
    *_files("gemini", "system", "{gemini_system}/settings.json"),
    *_files("gemini", "user", "{gemini}/settings.json"),
    *_files("gemini", "defaults", "{gemini_system}/system-defaults.json"),
    *_files("zed", "user", "{zed}/settings.json"),
    *_files("continue", "user", "{continue}/mcpServers/*.yaml", "{continue}/mcpServers/*.yml"),
    *_files("continue.json", "user", "{continue}/mcpServers/*.json"),
    *_files("continue", "user", "{continue}/config.yaml"),
    *_files(
        "cline",
        "user",
        "{cline_settings}",
        "{home}/.cline/mcp.json",
        "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "{home}/Documents/Cline/MCP/cline_mcp_settings.json",
    ),
    *_files(
        "opencode", "managed", "{opencode_system}/opencode.jsonc", "{opencode_system}/opencode.json"
    ),
    *_files(
        "opencode",
        "user",
        "{opencode_extra}/opencode.jsonc",
        "{opencode_extra}/opencode.json",
        "{opencode_file}",
        "{opencode}/opencode.jsonc",
        "{opencode}/opencode.json",
        "{opencode}/config.json",
    ),
    # Files that the first public bridge of this kind read, in its format.
    *_files("opencode.first", "user", "{home}/.opencode.json"),
    *_files(
        "opencode.first",
        "user",
        "{opencode_app}/opencode_config.json",
        "{opencode_app}/opencode_desktop_config.json",
        platforms=_MAC,
    ),
    *_files("goose", "user", "{goose}/config.yaml"),
    *_files("lm-studio", "user", "{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json"),
    *_files(
        "amazon-q",
        "user",
        "{home}/.aws/amazonq/mcp.json",
        "{home}/.aws/amazonq/default.json",
        "{home}/.aws/amazonq/agents/*.json",
        "{home}/.aws/amazonq/cli-agents/*.json",
    ),
    *_files("kiro", "user", "{home}/.kiro/settings/mcp.json"),
    *_files("kiro", "agent", "{home}/.kiro/agents/*.json"),
    *_files("jetbrains", "user", "{home}/.junie/mcp/mcp.json"),
    *_files("jetbrains.copilot", "user", "{intellij}/mcp.json"),
    *_files(
        "antigravity",
        "user",
        "{home}/.gemini/config/mcp_config.json",
        "{home}/.gemini/antigravity/mcp_config.json",
        "{home}/.antigravity/mcp.json",
        "{home}/.antigravity/settings.json",
    ),
    *_files("copilot", "user", "{copilot}/mcp-config.json"),
    *_files("qwen", "system", "{qwen_system}/settings.json"),
    *_files("qwen", "user", "{qwen}/settings.json"),
    *_files("qwen", "defaults", "{qwen_system}/system-defaults.json"),
    *_files("amp", "managed", "{amp_system}/managed-settings.json"),
    *_files("amp", "user", "{config}/amp/settings.json"),
    *_files("amp", "user", "{config}/amp/settings.jsonc", unless="settings.json"),
    *_files(
        "roo",
        "user",
        "{vscode}/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
    ),
    *_files("kilo", "user", "{config}/kilo/kilo.jsonc", "{config}/kilo/kilo.json"),
    *_files(
        "kilo.old",
        "user",
        "{vscode}/globalStorage/kilocode.kilo-code/settings/mcp_settings.json",
        "{home}/.kilocode/cli/global/settings/mcp_settings.json",
    ),
    *_files("trae", "user", "{trae}/mcp.json"),
    *_files("kimi", "user", "{kimi}/mcp.json", "{kimi_cli}/mcp.json"),
    *_files("droid", "user", "{home}/.factory/mcp.json"),
    *_files("crush", "user", "{crush_data}/crush.json", "{crush}/crush.json"),
    *_files("crush", "system", "{system}/etc/crush/crush.json", platforms=("linux", "darwin")),
    *_files("vibe", "user", "{vibe}/config.toml"),
    # Servers of plugins and extensions are weaker than the user's own.
    *_files(
        "claude-code.strict",
        "plugin",
        "{claude_settings}/plugins/installed_plugins.json",
        holds="plugins",
    ),
    *_files(
        "gemini", "extension", "{gemini}/extensions/*/gemini-extension.json", holds="extension"
    ),
    *_files("qwen", "extension", "{qwen}/extensions/*/qwen-extension.json", holds="extension"),
)

_OTHER_PROJECT = (
    *_files("cursor", "project", "{workspace}/.cursor/mcp.json"),
    *_files("vscode", "project", "{workspace}/.vscode/mcp.json"),
    *_files(
        "windsurf",
        "project",
        "{workspace}/.devin/config.local.json",
        "{workspace}/.devin/config.json",
        "{workspace}/.devin/mcp_config.json",
    ),
    *_files("codex", "project", "{within}/.codex/config.toml"),
    *_files("gemini", "project", "{cwd}/.gemini/settings.json"),
    *_files("zed", "project", "{workspace}/.zed/settings.json"),
    *_files(
        "continue",
        "project",
        "{workspace}/.continue/mcpServers/*.yaml",
        "{workspace}/.continue/mcpServers/*.yml",
    ),
    *_files("continue.json", "project", "{workspace}/.continue/mcpServers/*.json"),
    *_files(
        "opencode",
        "project",
        "{within}/opencode.jsonc",
        "{within}/opencode.json",
        "{within}/.opencode/opencode.jsonc",
        "{within}/.opencode/opencode.json",
    ),
    *_files(
        "opencode.first",
        "project",
        "{cwd}/opencode_config.json",
        "{cwd}/opencode_desktop_config.json",
    ),
    *_files(
        "amazon-q",
        "project",
        "{cwd}/.amazonq/mcp.json",
        "{cwd}/.amazonq/default.json",
        "{cwd}/.amazonq/agents/*.json",
        "{cwd}/.amazonq/cli-agents/*.json",
    ),
    *_files(
        "kiro", "project", "{workspace}/.kiro/settings/mcp.json", "{workspace}/.kiro/agents/*.json"
    ),
    *_files("jetbrains", "project", "{workspace}/.junie/mcp/mcp.json", "{workspace}/.air/mcp.json"),
    *_files("antigravity", "project", "{workspace}/.agents/mcp_config.json"),
    *_files("copilot", "project", "{within}/.github/mcp.json", unless="../.mcp.json"),
    *_files("qwen", "project", "{cwd}/.qwen/settings.json"),
    *_files("amp", "project", "{within}/.amp/settings.json"),
    *_files("amp", "project", "{within}/.amp/settings.jsonc", unless="settings.json"),
    *_files("roo", "project", "{workspace}/.roo/mcp.json"),
    *_files(
        "kilo",
        "project",
        "{within}/.kilo/kilo.jsonc",
        "{within}/.kilo/kilo.json",
        "{within}/kilo.jsonc",
        "{within}/kilo.json",
    ),
    *_files("kilo.old", "project", "{workspace}/.kilocode/mcp.json"),
    *_files("trae", "project", "{workspace}/.trae/mcp.json"),
    *_files("kimi", "project", "{cwd}/.kimi-code/mcp.json"),
    *_files("droid", "project", "{within}/.factory/mcp.json"),
    *_files("crush", "project", "{within}/.crush.json", "{within}/crush.json"),
    *_files("vibe", "project", "{within}/.vibe/config.toml"),
)

LOCATIONS: tuple[Location, ...] = (*_CLAUDE_USER, *_OTHER_USER, *_CLAUDE_PROJECT, *_OTHER_PROJECT)

SOURCE_IDS: tuple[str, ...] = tuple(dict.fromkeys(row.id for row in LOCATIONS if row.id))
"""The names that `MCP_BRIDGE_SOURCES` may contain."""
