"""The configuration files of all clients, as data.

`LOCATIONS` is in order of precedence: the first file that defines a name wins, and a weaker
definition is reported as shadowed. Files of the working directory come last, so that a repository
cannot take the name of a user's server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bridge.discovery import dialect as dialects
from bridge.discovery.dialect import Dialect, Format, Location, Platform

_LINUX: tuple[Platform, ...] = ("linux",)
_MAC: tuple[Platform, ...] = ("darwin",)
_WINDOWS: tuple[Platform, ...] = ("win32",)
_UNIX: tuple[Platform, ...] = (*_LINUX, *_MAC)

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


def _file(id: str, template: str, scope: str = "", **more: Any) -> Location:
    """Return a file's row. Without a `scope` it is a user's or, by its template, a project's."""
    name, format, dialect = CLIENTS[id]
    in_project = template.startswith(("{cwd}", "{workspace}", "{within}", "{upwards}"))
    return Location(
        id=id.partition(".")[0],
        client=name,
        scope=scope or ("project" if in_project else "user"),
        template=template,
        format=format,
        dialect=dialect,
        **more,
    )


def _files(id: str, *stems: str, ends: Iterable[str], scope: str = "") -> Iterator[Location]:
    """Return the rows of files that a client reads under several names, the strongest first."""
    return (_file(id, f"{stem}{end}", scope) for stem in stems for end in ends)


_JSON, _YAML = (".jsonc", ".json"), (".yaml", ".yml")
_AMAZON_Q = ("mcp.json", "default.json", "agents/*.json", "cli-agents/*.json")
_DESKTOP_FILE = "Claude/claude_desktop_config.json"

MANAGED: tuple[tuple[str, tuple[Platform, ...]], ...] = (
    ("{system}/etc/claude-code", _LINUX),
    ("{system}/Library/Application Support/ClaudeCode", _MAC),
    ("{programs}/ClaudeCode", _WINDOWS),
)
"""Directories of Claude Code's managed settings."""

LOCATIONS: tuple[Location, ...] = (
    _file("", "{extra}", "extra"),
    *(
        _file("claude-code.strict", f"{folder}/managed-mcp.json", "managed", platforms=only)
        for folder, only in MANAGED
    ),
    _file("claude-code.local", "{claude_state}/.claude.json", "local"),
    _file("claude-code", "{claude_state}/.claude.json"),
    _file("claude-code.settings", "{claude_settings}/settings.json"),
    _file("mcp-directory", "{home}/.config/mcp/servers/*.json"),
    _file("mcp-directory", "{home}/MCPs/*.json"),
    _file("claude-desktop", f"{{config}}/{_DESKTOP_FILE}", platforms=_LINUX),
    _file("claude-desktop", f"{{library}}/{_DESKTOP_FILE}", platforms=_MAC),
    # The Microsoft Store build redirects %APPDATA% to its own directory.
    _file(
        "claude-desktop",
        f"{{packages}}/Claude_*/LocalCache/Roaming/{_DESKTOP_FILE}",
        platforms=_WINDOWS,
    ),
    _file("claude-desktop", f"{{appdata}}/{_DESKTOP_FILE}", platforms=_WINDOWS),
    _file("mcp-directory", "{library}/Claude Code/mcp/servers/*.json", platforms=_MAC),
    _file("mcp-directory", "{library}/Claude/mcp/servers/*.json", platforms=_MAC),
    _file("claude-code", "{library}/Claude Code/claude_code_config.json", platforms=_MAC),
    _file("claude-code", "{library}/Claude/claude_code_config.json", platforms=_MAC),
    _file("cursor", "{home}/.cursor/mcp.json"),
    _file("vscode", "{vscode}/mcp.json"),
    _file("vscode.settings", "{vscode}/settings.json"),
    _file("vscode", "{vscode}/profiles/*/mcp.json", "profile"),
    _file("windsurf", "{devin}/config.json"),
    _file("windsurf", "{devin}/mcp_config.json"),
    _file("windsurf", "{home}/.codeium/windsurf/mcp_config.json"),
    _file("windsurf", "{home}/.codeium/mcp_config.json"),
    _file("codex", "{codex}/config.toml"),
    _file("codex", "{codex_system}/config.toml", "system"),
    _file("gemini", "{gemini_system}/settings.json", "system"),
    _file("gemini", "{gemini}/settings.json"),
    _file("gemini", "{gemini_system}/system-defaults.json", "defaults"),
    _file("zed", "{zed}/settings.json"),
    *_files("continue", "{continue}/mcpServers/*", ends=_YAML),
    _file("continue.json", "{continue}/mcpServers/*.json"),
    _file("continue", "{continue}/config.yaml"),
    _file("cline", "{cline_settings}"),
    _file("cline", "{home}/.cline/mcp.json"),
    _file(
        "cline", "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
    ),
    _file("cline", "{home}/Documents/Cline/MCP/cline_mcp_settings.json"),
    *_files("opencode", "{opencode_system}/opencode", ends=_JSON, scope="managed"),
    *_files("opencode", "{opencode_extra}/opencode", ends=_JSON),
    _file("opencode", "{opencode_file}"),
    *_files("opencode", "{opencode}/opencode", ends=_JSON),
    _file("opencode", "{opencode}/config.json"),
    # Files that the first public bridge of this kind read, in its format.
    _file("opencode.first", "{home}/.opencode.json"),
    _file("opencode.first", "{opencode_app}/opencode_config.json", platforms=_MAC),
    _file("opencode.first", "{opencode_app}/opencode_desktop_config.json", platforms=_MAC),
    _file("goose", "{goose}/config.yaml"),
    _file("lm-studio", "{home}/.lmstudio/mcp.json"),
    _file("lm-studio", "{home}/.cache/lm-studio/mcp.json"),
    *_files("amazon-q", "{home}/.aws/amazonq/", ends=_AMAZON_Q),
    _file("kiro", "{home}/.kiro/settings/mcp.json"),
    _file("kiro", "{home}/.kiro/agents/*.json", "agent"),
    _file("jetbrains", "{home}/.junie/mcp/mcp.json"),
    _file("jetbrains.copilot", "{intellij}/mcp.json"),
    _file("antigravity", "{home}/.gemini/config/mcp_config.json"),
    _file("antigravity", "{home}/.gemini/antigravity/mcp_config.json"),
    _file("antigravity", "{home}/.antigravity/mcp.json"),
    _file("antigravity", "{home}/.antigravity/settings.json"),
    _file("copilot", "{copilot}/mcp-config.json"),
    _file("qwen", "{qwen_system}/settings.json", "system"),
    _file("qwen", "{qwen}/settings.json"),
    _file("qwen", "{qwen_system}/system-defaults.json", "defaults"),
    _file("amp", "{amp_system}/managed-settings.json", "managed"),
    _file("amp", "{config}/amp/settings.json"),
    _file("amp", "{config}/amp/settings.jsonc", unless="settings.json"),
    _file("roo", "{vscode}/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"),
    *_files("kilo", "{config}/kilo/kilo", ends=_JSON),
    _file("kilo.old", "{vscode}/globalStorage/kilocode.kilo-code/settings/mcp_settings.json"),
    _file("kilo.old", "{home}/.kilocode/cli/global/settings/mcp_settings.json"),
    _file("trae", "{trae}/mcp.json"),
    _file("kimi", "{kimi}/mcp.json"),
    _file("kimi", "{kimi_cli}/mcp.json"),
    _file("droid", "{home}/.factory/mcp.json"),
    _file("crush", "{crush_data}/crush.json"),
    _file("crush", "{crush}/crush.json"),
    _file("crush", "{system}/etc/crush/crush.json", "system", platforms=_UNIX),
    _file("vibe", "{vibe}/config.toml"),
    # Servers of plugins and extensions are weaker than the user's own.
    _file(
        "claude-code.strict",
        "{claude_settings}/plugins/installed_plugins.json",
        "plugin",
        holds="plugins",
    ),
    _file("gemini", "{gemini}/extensions/*/gemini-extension.json", "extension", holds="extension"),
    _file("qwen", "{qwen}/extensions/*/qwen-extension.json", "extension", holds="extension"),
    # Files of the working directory.
    _file("claude-code.strict", "{upwards}/.mcp.json", approvable=True),
    _file("claude-code.settings", "{workspace}/.claude/settings.local.json"),
    _file("claude-code.settings", "{workspace}/.claude/settings.json"),
    _file("mcp-directory", "{cwd}/mcp-servers/*.json"),
    _file("claude-code", "{cwd}/claude_code_config.json"),
    _file("claude-desktop", "{cwd}/claude_desktop_config.json"),
    _file("cursor", "{workspace}/.cursor/mcp.json"),
    _file("vscode", "{workspace}/.vscode/mcp.json"),
    _file("windsurf", "{workspace}/.devin/config.local.json"),
    _file("windsurf", "{workspace}/.devin/config.json"),
    _file("windsurf", "{workspace}/.devin/mcp_config.json"),
    _file("codex", "{within}/.codex/config.toml"),
    _file("gemini", "{cwd}/.gemini/settings.json"),
    _file("zed", "{workspace}/.zed/settings.json"),
    *_files("continue", "{workspace}/.continue/mcpServers/*", ends=_YAML),
    _file("continue.json", "{workspace}/.continue/mcpServers/*.json"),
    *_files("opencode", "{within}/opencode", "{within}/.opencode/opencode", ends=_JSON),
    _file("opencode.first", "{cwd}/opencode_config.json"),
    _file("opencode.first", "{cwd}/opencode_desktop_config.json"),
    *_files("amazon-q", "{cwd}/.amazonq/", ends=_AMAZON_Q),
    _file("kiro", "{workspace}/.kiro/settings/mcp.json"),
    _file("kiro", "{workspace}/.kiro/agents/*.json"),
    _file("jetbrains", "{workspace}/.junie/mcp/mcp.json"),
    _file("jetbrains", "{workspace}/.air/mcp.json"),
    _file("antigravity", "{workspace}/.agents/mcp_config.json"),
    _file("copilot", "{within}/.github/mcp.json", unless="../.mcp.json"),
    _file("qwen", "{cwd}/.qwen/settings.json"),
    _file("amp", "{within}/.amp/settings.json"),
    _file("amp", "{within}/.amp/settings.jsonc", unless="settings.json"),
    _file("roo", "{workspace}/.roo/mcp.json"),
    *_files("kilo", "{within}/.kilo/kilo", "{within}/kilo", ends=_JSON),
    _file("kilo.old", "{workspace}/.kilocode/mcp.json"),
    _file("trae", "{workspace}/.trae/mcp.json"),
    _file("kimi", "{cwd}/.kimi-code/mcp.json"),
    _file("droid", "{within}/.factory/mcp.json"),
    _file("crush", "{within}/.crush.json"),
    _file("crush", "{within}/crush.json"),
    _file("vibe", "{within}/.vibe/config.toml"),
)

SOURCE_IDS: tuple[str, ...] = tuple(dict.fromkeys(row.id for row in LOCATIONS if row.id))
"""The names that `MCP_BRIDGE_SOURCES` may contain."""
