"""The golden inputs of all clients, and their places on a test machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import PLATFORMS, Location, Platform

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
"""The places of templates below the machine's root: Linux, macOS, Windows."""

STAR = "calendar"


@dataclass(frozen=True)
class Case:
    """A golden input of a template; `at` and `place_name` override its place."""

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


GIVEN = {
    "claude-code": {
        "managed-mcp": "managed-mcp.json",
        "{claude_state}": "claude-code-state.json",
        "/settings": "settings.json",
        "claude_code_config": "claude_code_config.json",
        "plugins": "installed_plugins.json",
        "{upwards}": "dot-mcp.json",
    },
    "mcp-directory": {
        "MCPs": "several-servers.json",
        "Claude/": "several-servers.json",
        "": "bare-server.json",
    },
    "vscode": {"settings": "settings.json", "": "mcp.json"},
    "gemini": {"extension": "gemini-extension.json", "": "settings.json"},
    "qwen": {"extension": "qwen-extension.json", "": "settings.json"},
    "continue": {"config": "config.yaml", "*.json": "mcp.json", "": "server.yaml"},
    "opencode": {
        "{home}": "opencode_config.json",
        "_config": "opencode_config.json",
        "": "opencode.jsonc",
    },
    "amazon-q": {"/mcp.json": "mcp.json", "": "agent.json"},
    "kiro": {"agents": "agent.json", "": "mcp.json"},
    "jetbrains": {"{intellij}": "copilot-plugin.json", "": "mcp.json"},
    "kilo": {"kilo.json": "kilo.jsonc", "": "mcp.json"},
}
"""The inputs of clients with several ones, by a part of the template."""


def _case(row: Location) -> Case:
    names = {"": next((GOLDEN / row.id).iterdir()).name} if row.id not in GIVEN else GIVEN[row.id]
    given = next(name for part, name in names.items() if part in row.template)
    return Case(row.template, f"{row.id}/{given}", per_project=row.dialect.per_project)


CASES = (
    Case("{extra}", "extra/extra.json", "home/extra.json"),
    Case("{extra}", "extra/extra.toml", "home/extra.toml"),
    Case("{vscode}/mcp.json", "vscode/mcp.json", place_name="vscode insiders"),
    Case("{opencode}/opencode.json", "opencode/opencode.jsonc", place_name="opencode home"),
    *(_case(row) for row in LOCATIONS if row.id),
)
