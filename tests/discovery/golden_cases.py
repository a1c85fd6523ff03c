"""Files as each client writes them, and where it keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.dialect import PLATFORMS, Platform

GOLDEN = Path(__file__).parents[1] / "testdata" / "discovery"

SUPPORT = "home/Library/Application Support"
SYSTEM_SUPPORT = "system/Library/Application Support"

PLACES: Mapping[str, str | tuple[str, str, str]] = {
    "home": "home",
    "upwards": "home/shop",
    "cwd": "home/shop",
    "workspace": "home/shop",
    "within": "home/shop",
    "config": "xdg",
    "library": SUPPORT,
    "appdata": "appdata",
    "packages": "local/Packages",
    "programs": "programs",
    "system": "system",
    "claude_state": "home",
    "claude_settings": "home/.claude",
    "codex": "home/.codex",
    "gemini": "home/.gemini",
    "qwen": "home/.qwen",
    "continue": "home/.continue",
    "copilot": "home/.copilot",
    "kimi": "home/.kimi-code",
    "kimi_cli": "home/.kimi",
    "vibe": "home/.vibe",
    "opencode": "xdg/opencode",
    "opencode_extra": "opencode-directory",
    "opencode_app": f"{SUPPORT}/OpenCode",
    "crush": "xdg/crush",
    "opencode_file": "opencode-named.json",
    "cline_settings": "home/.cline/data/settings/cline_mcp_settings.json",
    "vscode": ("xdg/Code/User", f"{SUPPORT}/Code/User", "appdata/Code/User"),
    "vscode insiders": (
        "xdg/Code - Insiders/User",
        f"{SUPPORT}/Code - Insiders/User",
        "appdata/Code - Insiders/User",
    ),
    "trae": ("xdg/Trae/User", f"{SUPPORT}/Trae/User", "appdata/Trae/User"),
    "devin": ("home/.config/devin", "home/.config/devin", "appdata/devin"),
    "codex_system": ("system/etc/codex", "system/etc/codex", "data/OpenAI/Codex"),
    "gemini_system": ("system/etc/gemini-cli", f"{SYSTEM_SUPPORT}/GeminiCli", "data/gemini-cli"),
    "qwen_system": ("system/etc/qwen-code", f"{SYSTEM_SUPPORT}/QwenCode", "data/qwen-code"),
    "amp_system": ("system/etc/ampcode", f"{SYSTEM_SUPPORT}/ampcode", "data/ampcode"),
    "opencode_system": ("system/etc/opencode", f"{SYSTEM_SUPPORT}/opencode", "data/opencode"),
    "zed": ("xdg/zed", "xdg/zed", "appdata/Zed"),
    "goose": ("xdg/goose", "xdg/goose", "appdata/Block/goose/config"),
    "intellij": (
        "xdg/github-copilot/intellij",
        "xdg/github-copilot/intellij",
        "local/github-copilot/intellij",
    ),
    "crush_data": ("home/.local/share/crush", "home/.local/share/crush", "local/crush"),
    "opencode home": "home/.opencode",
}
"""Where the test machine has the places of templates, below its root: Linux, macOS, Windows."""

STAR = "calendar"
"""What stands for a star in a template."""


@dataclass(frozen=True)
class Case:
    """A golden input, and where on the machine of the test it stands.

    Attributes:
        template: The row's own.
        given: The input, below the test data.
        at: Where it is put below the test's root, if the template does not say so.
        per_project: Tells apart two rows that read one file.
        place_name: The place of `PLACES`, if not the template's.
    """

    template: str
    given: str
    at: str = ""
    per_project: bool = False
    place_name: str = ""

    def place(self, platform: Platform) -> str:
        name, _, rest = self.template[1:].partition("}")
        place = self.at or PLACES[self.place_name or name]
        found = place if isinstance(place, str) else place[PLATFORMS.index(platform)]
        return found if self.at else (found + rest).replace("*", STAR)


TEMPLATES = {
    "claude-code/managed-mcp.json": [
        "{system}/etc/claude-code/managed-mcp.json",
        "{system}/Library/Application Support/ClaudeCode/managed-mcp.json",
        "{programs}/ClaudeCode/managed-mcp.json",
    ],
    "claude-code/claude-code-state.json": ["{claude_state}/.claude.json"],
    "claude-code/dot-mcp.json": ["{upwards}/.mcp.json"],
    "mcp-directory/bare-server.json": [
        "{home}/.config/mcp/servers/*.json",
        "{library}/Claude Code/mcp/servers/*.json",
        "{cwd}/mcp-servers/*.json",
    ],
    "mcp-directory/several-servers.json": [
        "{home}/MCPs/*.json",
        "{library}/Claude/mcp/servers/*.json",
    ],
    "claude-desktop/claude_desktop_config.json": [
        "{config}/Claude/claude_desktop_config.json",
        "{library}/Claude/claude_desktop_config.json",
        "{appdata}/Claude/claude_desktop_config.json",
        "{cwd}/claude_desktop_config.json",
        "{packages}/Claude_*/LocalCache/Roaming/Claude/claude_desktop_config.json",
    ],
    "claude-code/claude_code_config.json": [
        "{library}/Claude Code/claude_code_config.json",
        "{library}/Claude/claude_code_config.json",
        "{cwd}/claude_code_config.json",
    ],
    "cursor/mcp.json": ["{home}/.cursor/mcp.json", "{workspace}/.cursor/mcp.json"],
    "vscode/mcp.json": [
        "{vscode}/mcp.json",
        "{workspace}/.vscode/mcp.json",
        "{vscode}/profiles/*/mcp.json",
    ],
    "vscode/settings.json": ["{vscode}/settings.json"],
    "windsurf/mcp_config.json": [
        "{devin}/mcp_config.json",
        "{home}/.codeium/windsurf/mcp_config.json",
        "{home}/.codeium/mcp_config.json",
        "{devin}/config.json",
        "{workspace}/.devin/config.local.json",
        "{workspace}/.devin/config.json",
        "{workspace}/.devin/mcp_config.json",
    ],
    "codex/config.toml": [
        "{codex}/config.toml",
        "{codex_system}/config.toml",
        "{within}/.codex/config.toml",
    ],
    "gemini/settings.json": [
        "{gemini_system}/settings.json",
        "{gemini_system}/system-defaults.json",
        "{gemini}/settings.json",
        "{cwd}/.gemini/settings.json",
    ],
    "zed/settings.json": ["{zed}/settings.json", "{workspace}/.zed/settings.json"],
    "continue/server.yaml": [
        "{continue}/mcpServers/*.yaml",
        "{continue}/mcpServers/*.yml",
        "{workspace}/.continue/mcpServers/*.yaml",
        "{workspace}/.continue/mcpServers/*.yml",
    ],
    "continue/mcp.json": [
        "{continue}/mcpServers/*.json",
        "{workspace}/.continue/mcpServers/*.json",
    ],
    "continue/config.yaml": ["{continue}/config.yaml"],
    "cline/cline_mcp_settings.json": [
        "{cline_settings}",
        "{home}/.cline/mcp.json",
        "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "{home}/Documents/Cline/MCP/cline_mcp_settings.json",
    ],
    "opencode/opencode.jsonc": [
        "{opencode_system}/opencode.jsonc",
        "{opencode_system}/opencode.json",
        "{opencode_extra}/opencode.jsonc",
        "{opencode_extra}/opencode.json",
        "{opencode_file}",
        "{opencode}/opencode.jsonc",
        "{opencode}/config.json",
        "{within}/opencode.jsonc",
        "{within}/opencode.json",
        "{within}/.opencode/opencode.jsonc",
        "{within}/.opencode/opencode.json",
    ],
    "opencode/opencode_config.json": [
        "{home}/.opencode.json",
        "{opencode_app}/opencode_config.json",
        "{opencode_app}/opencode_desktop_config.json",
        "{cwd}/opencode_config.json",
        "{cwd}/opencode_desktop_config.json",
    ],
    "goose/config.yaml": ["{goose}/config.yaml"],
    "lm-studio/mcp.json": ["{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json"],
    "amazon-q/mcp.json": ["{home}/.aws/amazonq/mcp.json", "{cwd}/.amazonq/mcp.json"],
    "amazon-q/agent.json": [
        "{home}/.aws/amazonq/default.json",
        "{home}/.aws/amazonq/agents/*.json",
        "{home}/.aws/amazonq/cli-agents/*.json",
        "{cwd}/.amazonq/default.json",
        "{cwd}/.amazonq/agents/*.json",
        "{cwd}/.amazonq/cli-agents/*.json",
    ],
    "kiro/mcp.json": ["{home}/.kiro/settings/mcp.json", "{workspace}/.kiro/settings/mcp.json"],
    "jetbrains/mcp.json": [
        "{home}/.junie/mcp/mcp.json",
        "{workspace}/.junie/mcp/mcp.json",
        "{workspace}/.air/mcp.json",
    ],
    "jetbrains/copilot-plugin.json": ["{intellij}/mcp.json"],
    "antigravity/mcp_config.json": [
        "{home}/.gemini/config/mcp_config.json",
        "{home}/.gemini/antigravity/mcp_config.json",
        "{home}/.antigravity/mcp.json",
        "{home}/.antigravity/settings.json",
        "{workspace}/.agents/mcp_config.json",
    ],
    "copilot/mcp-config.json": ["{copilot}/mcp-config.json", "{within}/.github/mcp.json"],
    "kiro/agent.json": ["{home}/.kiro/agents/*.json", "{workspace}/.kiro/agents/*.json"],
    "qwen/settings.json": [
        "{qwen_system}/settings.json",
        "{qwen_system}/system-defaults.json",
        "{qwen}/settings.json",
        "{cwd}/.qwen/settings.json",
    ],
    "amp/settings.json": [
        "{amp_system}/managed-settings.json",
        "{config}/amp/settings.json",
        "{config}/amp/settings.jsonc",
        "{within}/.amp/settings.json",
        "{within}/.amp/settings.jsonc",
    ],
    "roo/mcp_settings.json": [
        "{vscode}/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        "{workspace}/.roo/mcp.json",
    ],
    "kilo/kilo.jsonc": [
        "{config}/kilo/kilo.jsonc",
        "{config}/kilo/kilo.json",
        "{within}/.kilo/kilo.jsonc",
        "{within}/.kilo/kilo.json",
        "{within}/kilo.jsonc",
        "{within}/kilo.json",
    ],
    "kilo/mcp.json": [
        "{vscode}/globalStorage/kilocode.kilo-code/settings/mcp_settings.json",
        "{home}/.kilocode/cli/global/settings/mcp_settings.json",
        "{workspace}/.kilocode/mcp.json",
    ],
    "claude-code/settings.json": [
        "{claude_settings}/settings.json",
        "{workspace}/.claude/settings.local.json",
        "{workspace}/.claude/settings.json",
    ],
    "trae/mcp.json": ["{trae}/mcp.json", "{workspace}/.trae/mcp.json"],
    "kimi/mcp.json": ["{kimi}/mcp.json", "{kimi_cli}/mcp.json", "{cwd}/.kimi-code/mcp.json"],
    "droid/mcp.json": ["{home}/.factory/mcp.json", "{within}/.factory/mcp.json"],
    "crush/crush.json": [
        "{crush_data}/crush.json",
        "{crush}/crush.json",
        "{system}/etc/crush/crush.json",
        "{within}/.crush.json",
        "{within}/crush.json",
    ],
    "vibe/config.toml": ["{vibe}/config.toml", "{within}/.vibe/config.toml"],
    "claude-code/installed_plugins.json": ["{claude_settings}/plugins/installed_plugins.json"],
    "gemini/gemini-extension.json": ["{gemini}/extensions/*/gemini-extension.json"],
    "qwen/qwen-extension.json": ["{qwen}/extensions/*/qwen-extension.json"],
}

CASES = (
    Case("{extra}", "extra/extra.json", "home/extra.json"),
    Case("{extra}", "extra/extra.toml", "home/extra.toml"),
    Case("{claude_state}/.claude.json", "claude-code/claude-code-state.json", per_project=True),
    Case("{vscode}/mcp.json", "vscode/mcp.json", place_name="vscode insiders"),
    Case("{opencode}/opencode.json", "opencode/opencode.jsonc", place_name="opencode home"),
    *(Case(template, given) for given in TEMPLATES for template in TEMPLATES[given]),
)
