"""Files as each client writes them, and where it keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.dialect import Platform

GOLDEN = Path(__file__).parents[1] / "testdata" / "discovery"

SUPPORT = "home/Library/Application Support"
_ROO = "globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"


@dataclass(frozen=True)
class Case:
    """A golden input, and where on the machine of the test it stands.

    Attributes:
        template: The row's own.
        given: The input, below the test data.
        at: Where it is put, below the test's root.
        darwin, win32: Where it is put on those platforms, when not there.
        per_project: Tells apart two rows that read one file.
    """

    template: str
    given: str
    at: str
    darwin: str = ""
    win32: str = ""
    per_project: bool = False

    def place(self, platform: Platform) -> str:
        return {"linux": "", "darwin": self.darwin, "win32": self.win32}[platform] or self.at


CASES = (
    Case("{extra}", "extra/extra.json", "home/extra.json"),
    Case("{extra}", "extra/extra.toml", "home/extra.toml"),
    Case(
        "{system}/etc/claude-code/managed-mcp.json",
        "claude-code/managed-mcp.json",
        "system/etc/claude-code/managed-mcp.json",
    ),
    Case(
        "{system}/Library/Application Support/ClaudeCode/managed-mcp.json",
        "claude-code/managed-mcp.json",
        "system/Library/Application Support/ClaudeCode/managed-mcp.json",
    ),
    Case(
        "{programs}/ClaudeCode/managed-mcp.json",
        "claude-code/managed-mcp.json",
        "programs/ClaudeCode/managed-mcp.json",
    ),
    Case(
        "{claude_state}/.claude.json",
        "claude-code/claude-code-state.json",
        "home/.claude.json",
        per_project=True,
    ),
    Case("{claude_state}/.claude.json", "claude-code/claude-code-state.json", "home/.claude.json"),
    Case("{upwards}/.mcp.json", "claude-code/dot-mcp.json", "home/shop/.mcp.json"),
    Case(
        "{home}/.config/mcp/servers/*.json",
        "mcp-directory/bare-server.json",
        "home/.config/mcp/servers/calendar.json",
    ),
    Case("{home}/MCPs/*.json", "mcp-directory/several-servers.json", "home/MCPs/several.json"),
    Case(
        "{config}/Claude/claude_desktop_config.json",
        "claude-desktop/claude_desktop_config.json",
        "xdg/Claude/claude_desktop_config.json",
    ),
    Case(
        "{library}/Claude/claude_desktop_config.json",
        "claude-desktop/claude_desktop_config.json",
        f"{SUPPORT}/Claude/claude_desktop_config.json",
    ),
    Case(
        "{appdata}/Claude/claude_desktop_config.json",
        "claude-desktop/claude_desktop_config.json",
        "appdata/Claude/claude_desktop_config.json",
    ),
    Case(
        "{library}/Claude Code/mcp/servers/*.json",
        "mcp-directory/bare-server.json",
        f"{SUPPORT}/Claude Code/mcp/servers/calendar.json",
    ),
    Case(
        "{library}/Claude/mcp/servers/*.json",
        "mcp-directory/several-servers.json",
        f"{SUPPORT}/Claude/mcp/servers/several.json",
    ),
    Case(
        "{library}/Claude Code/claude_code_config.json",
        "claude-code/claude_code_config.json",
        f"{SUPPORT}/Claude Code/claude_code_config.json",
    ),
    Case(
        "{library}/Claude/claude_code_config.json",
        "claude-code/claude_code_config.json",
        f"{SUPPORT}/Claude/claude_code_config.json",
    ),
    Case(
        "{cwd}/mcp-servers/*.json",
        "mcp-directory/bare-server.json",
        "home/shop/mcp-servers/calendar.json",
    ),
    Case(
        "{cwd}/claude_code_config.json",
        "claude-code/claude_code_config.json",
        "home/shop/claude_code_config.json",
    ),
    Case(
        "{cwd}/claude_desktop_config.json",
        "claude-desktop/claude_desktop_config.json",
        "home/shop/claude_desktop_config.json",
    ),
    Case("{home}/.cursor/mcp.json", "cursor/mcp.json", "home/.cursor/mcp.json"),
    Case("{workspace}/.cursor/mcp.json", "cursor/mcp.json", "home/shop/.cursor/mcp.json"),
    Case(
        "{vscode}/mcp.json",
        "vscode/mcp.json",
        "xdg/Code/User/mcp.json",
        darwin=f"{SUPPORT}/Code/User/mcp.json",
        win32="appdata/Code/User/mcp.json",
    ),
    Case(
        "{vscode}/mcp.json",
        "vscode/mcp.json",
        "xdg/Code - Insiders/User/mcp.json",
        darwin=f"{SUPPORT}/Code - Insiders/User/mcp.json",
        win32="appdata/Code - Insiders/User/mcp.json",
    ),
    Case(
        "{vscode}/settings.json",
        "vscode/settings.json",
        "xdg/Code/User/settings.json",
        darwin=f"{SUPPORT}/Code/User/settings.json",
        win32="appdata/Code/User/settings.json",
    ),
    Case("{workspace}/.vscode/mcp.json", "vscode/mcp.json", "home/shop/.vscode/mcp.json"),
    Case(
        "{devin}/mcp_config.json",
        "windsurf/mcp_config.json",
        "home/.config/devin/mcp_config.json",
        darwin="home/.config/devin/mcp_config.json",
        win32="appdata/devin/mcp_config.json",
    ),
    Case(
        "{home}/.codeium/windsurf/mcp_config.json",
        "windsurf/mcp_config.json",
        "home/.codeium/windsurf/mcp_config.json",
    ),
    Case(
        "{home}/.codeium/mcp_config.json",
        "windsurf/mcp_config.json",
        "home/.codeium/mcp_config.json",
    ),
    Case("{codex}/config.toml", "codex/config.toml", "home/.codex/config.toml"),
    Case(
        "{codex_system}/config.toml",
        "codex/config.toml",
        "system/etc/codex/config.toml",
        darwin="system/etc/codex/config.toml",
        win32="data/OpenAI/Codex/config.toml",
    ),
    Case("{within}/.codex/config.toml", "codex/config.toml", "home/shop/.codex/config.toml"),
    Case(
        "{gemini_system}/settings.json",
        "gemini/settings.json",
        "system/etc/gemini-cli/settings.json",
        darwin="system/Library/Application Support/GeminiCli/settings.json",
        win32="data/gemini-cli/settings.json",
    ),
    Case(
        "{gemini_system}/system-defaults.json",
        "gemini/settings.json",
        "system/etc/gemini-cli/system-defaults.json",
        darwin="system/Library/Application Support/GeminiCli/system-defaults.json",
        win32="data/gemini-cli/system-defaults.json",
    ),
    Case("{gemini}/settings.json", "gemini/settings.json", "home/.gemini/settings.json"),
    Case("{cwd}/.gemini/settings.json", "gemini/settings.json", "home/shop/.gemini/settings.json"),
    Case(
        "{zed}/settings.json",
        "zed/settings.json",
        "xdg/zed/settings.json",
        darwin="xdg/zed/settings.json",
        win32="appdata/Zed/settings.json",
    ),
    Case("{workspace}/.zed/settings.json", "zed/settings.json", "home/shop/.zed/settings.json"),
    Case(
        "{continue}/mcpServers/*.yaml",
        "continue/server.yaml",
        "home/.continue/mcpServers/server.yaml",
    ),
    Case(
        "{continue}/mcpServers/*.yml",
        "continue/server.yaml",
        "home/.continue/mcpServers/server.yml",
    ),
    Case("{continue}/mcpServers/*.json", "continue/mcp.json", "home/.continue/mcpServers/mcp.json"),
    Case("{continue}/config.yaml", "continue/config.yaml", "home/.continue/config.yaml"),
    Case(
        "{workspace}/.continue/mcpServers/*.yaml",
        "continue/server.yaml",
        "home/shop/.continue/mcpServers/server.yaml",
    ),
    Case(
        "{workspace}/.continue/mcpServers/*.yml",
        "continue/server.yaml",
        "home/shop/.continue/mcpServers/server.yml",
    ),
    Case(
        "{workspace}/.continue/mcpServers/*.json",
        "continue/mcp.json",
        "home/shop/.continue/mcpServers/mcp.json",
    ),
    Case(
        "{cline_settings}",
        "cline/cline_mcp_settings.json",
        "home/.cline/data/settings/cline_mcp_settings.json",
    ),
    Case("{home}/.cline/mcp.json", "cline/cline_mcp_settings.json", "home/.cline/mcp.json"),
    Case(
        "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "cline/cline_mcp_settings.json",
        "xdg/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        darwin=f"{SUPPORT}/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        win32="appdata/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
    ),
    Case(
        "{home}/Documents/Cline/MCP/cline_mcp_settings.json",
        "cline/cline_mcp_settings.json",
        "home/Documents/Cline/MCP/cline_mcp_settings.json",
    ),
    Case(
        "{opencode_system}/opencode.jsonc",
        "opencode/opencode.jsonc",
        "system/etc/opencode/opencode.jsonc",
        darwin="system/Library/Application Support/opencode/opencode.jsonc",
        win32="data/opencode/opencode.jsonc",
    ),
    Case(
        "{opencode_system}/opencode.json",
        "opencode/opencode.jsonc",
        "system/etc/opencode/opencode.json",
        darwin="system/Library/Application Support/opencode/opencode.json",
        win32="data/opencode/opencode.json",
    ),
    Case(
        "{opencode_extra}/opencode.jsonc",
        "opencode/opencode.jsonc",
        "opencode-directory/opencode.jsonc",
    ),
    Case(
        "{opencode_extra}/opencode.json",
        "opencode/opencode.jsonc",
        "opencode-directory/opencode.json",
    ),
    Case("{opencode_file}", "opencode/opencode.jsonc", "opencode-named.json"),
    Case("{opencode}/opencode.jsonc", "opencode/opencode.jsonc", "xdg/opencode/opencode.jsonc"),
    Case("{opencode}/opencode.json", "opencode/opencode.jsonc", "home/.opencode/opencode.json"),
    Case("{opencode}/config.json", "opencode/opencode.jsonc", "xdg/opencode/config.json"),
    Case("{home}/.opencode.json", "opencode/opencode_config.json", "home/.opencode.json"),
    Case(
        "{opencode_app}/opencode_config.json",
        "opencode/opencode_config.json",
        f"{SUPPORT}/OpenCode/opencode_config.json",
    ),
    Case(
        "{opencode_app}/opencode_desktop_config.json",
        "opencode/opencode_config.json",
        f"{SUPPORT}/OpenCode/opencode_desktop_config.json",
    ),
    Case("{within}/opencode.jsonc", "opencode/opencode.jsonc", "home/shop/opencode.jsonc"),
    Case("{within}/opencode.json", "opencode/opencode.jsonc", "home/shop/opencode.json"),
    Case(
        "{within}/.opencode/opencode.jsonc",
        "opencode/opencode.jsonc",
        "home/shop/.opencode/opencode.jsonc",
    ),
    Case(
        "{within}/.opencode/opencode.json",
        "opencode/opencode.jsonc",
        "home/shop/.opencode/opencode.json",
    ),
    Case(
        "{cwd}/opencode_config.json",
        "opencode/opencode_config.json",
        "home/shop/opencode_config.json",
    ),
    Case(
        "{cwd}/opencode_desktop_config.json",
        "opencode/opencode_config.json",
        "home/shop/opencode_desktop_config.json",
    ),
    Case(
        "{goose}/config.yaml",
        "goose/config.yaml",
        "xdg/goose/config.yaml",
        darwin="xdg/goose/config.yaml",
        win32="appdata/Block/goose/config/config.yaml",
    ),
    Case("{home}/.lmstudio/mcp.json", "lm-studio/mcp.json", "home/.lmstudio/mcp.json"),
    Case(
        "{home}/.cache/lm-studio/mcp.json", "lm-studio/mcp.json", "home/.cache/lm-studio/mcp.json"
    ),
    Case("{home}/.aws/amazonq/mcp.json", "amazon-q/mcp.json", "home/.aws/amazonq/mcp.json"),
    Case(
        "{home}/.aws/amazonq/default.json", "amazon-q/agent.json", "home/.aws/amazonq/default.json"
    ),
    Case(
        "{home}/.aws/amazonq/agents/*.json",
        "amazon-q/agent.json",
        "home/.aws/amazonq/agents/default.json",
    ),
    Case(
        "{home}/.aws/amazonq/cli-agents/*.json",
        "amazon-q/agent.json",
        "home/.aws/amazonq/cli-agents/helper.json",
    ),
    Case("{cwd}/.amazonq/mcp.json", "amazon-q/mcp.json", "home/shop/.amazonq/mcp.json"),
    Case("{cwd}/.amazonq/default.json", "amazon-q/agent.json", "home/shop/.amazonq/default.json"),
    Case(
        "{cwd}/.amazonq/agents/*.json",
        "amazon-q/agent.json",
        "home/shop/.amazonq/agents/default.json",
    ),
    Case(
        "{cwd}/.amazonq/cli-agents/*.json",
        "amazon-q/agent.json",
        "home/shop/.amazonq/cli-agents/helper.json",
    ),
    Case("{home}/.kiro/settings/mcp.json", "kiro/mcp.json", "home/.kiro/settings/mcp.json"),
    Case(
        "{workspace}/.kiro/settings/mcp.json", "kiro/mcp.json", "home/shop/.kiro/settings/mcp.json"
    ),
    Case("{home}/.junie/mcp/mcp.json", "jetbrains/mcp.json", "home/.junie/mcp/mcp.json"),
    Case(
        "{intellij}/mcp.json",
        "jetbrains/copilot-plugin.json",
        "xdg/github-copilot/intellij/mcp.json",
        darwin="xdg/github-copilot/intellij/mcp.json",
        win32="local/github-copilot/intellij/mcp.json",
    ),
    Case("{workspace}/.junie/mcp/mcp.json", "jetbrains/mcp.json", "home/shop/.junie/mcp/mcp.json"),
    Case("{workspace}/.air/mcp.json", "jetbrains/mcp.json", "home/shop/.air/mcp.json"),
    Case(
        "{home}/.gemini/config/mcp_config.json",
        "antigravity/mcp_config.json",
        "home/.gemini/config/mcp_config.json",
    ),
    Case(
        "{home}/.gemini/antigravity/mcp_config.json",
        "antigravity/mcp_config.json",
        "home/.gemini/antigravity/mcp_config.json",
    ),
    Case(
        "{home}/.antigravity/mcp.json", "antigravity/mcp_config.json", "home/.antigravity/mcp.json"
    ),
    Case(
        "{home}/.antigravity/settings.json",
        "antigravity/mcp_config.json",
        "home/.antigravity/settings.json",
    ),
    Case(
        "{workspace}/.agents/mcp_config.json",
        "antigravity/mcp_config.json",
        "home/shop/.agents/mcp_config.json",
    ),
    Case("{copilot}/mcp-config.json", "copilot/mcp-config.json", "home/.copilot/mcp-config.json"),
    Case("{within}/.github/mcp.json", "copilot/mcp-config.json", "home/shop/.github/mcp.json"),
    Case(
        "{packages}/Claude_*/LocalCache/Roaming/Claude/claude_desktop_config.json",
        "claude-desktop/claude_desktop_config.json",
        "local/Packages/Claude_pzs8sxrjxfjjc/LocalCache/Roaming/Claude/claude_desktop_config.json",
    ),
    Case(
        "{vscode}/profiles/*/mcp.json",
        "vscode/mcp.json",
        "xdg/Code/User/profiles/-5d1/mcp.json",
        darwin=f"{SUPPORT}/Code/User/profiles/-5d1/mcp.json",
        win32="appdata/Code/User/profiles/-5d1/mcp.json",
    ),
    Case(
        "{devin}/config.json",
        "windsurf/mcp_config.json",
        "home/.config/devin/config.json",
        darwin="home/.config/devin/config.json",
        win32="appdata/devin/config.json",
    ),
    *(
        Case(f"{{workspace}}/.devin/{name}", "windsurf/mcp_config.json", f"home/shop/.devin/{name}")
        for name in ("config.local.json", "config.json", "mcp_config.json")
    ),
    Case("{home}/.kiro/agents/*.json", "kiro/agent.json", "home/.kiro/agents/reviewer.json"),
    Case(
        "{workspace}/.kiro/agents/*.json", "kiro/agent.json", "home/shop/.kiro/agents/reviewer.json"
    ),
    *(
        Case(
            f"{{qwen_system}}/{name}",
            "qwen/settings.json",
            f"system/etc/qwen-code/{name}",
            darwin=f"system/Library/Application Support/QwenCode/{name}",
            win32=f"data/qwen-code/{name}",
        )
        for name in ("settings.json", "system-defaults.json")
    ),
    Case("{qwen}/settings.json", "qwen/settings.json", "home/.qwen/settings.json"),
    Case("{cwd}/.qwen/settings.json", "qwen/settings.json", "home/shop/.qwen/settings.json"),
    *(
        Case(f"{place}/{name}", "amp/settings.json", f"{at}/{name}")
        for place, at in (("{config}/amp", "xdg/amp"), ("{within}/.amp", "home/shop/.amp"))
        for name in ("settings.json", "settings.jsonc")
    ),
    Case(
        f"{{vscode}}/{_ROO}",
        "roo/mcp_settings.json",
        f"xdg/Code/User/{_ROO}",
        darwin=f"{SUPPORT}/Code/User/{_ROO}",
        win32=f"appdata/Code/User/{_ROO}",
    ),
    Case("{workspace}/.roo/mcp.json", "roo/mcp_settings.json", "home/shop/.roo/mcp.json"),
    Case(
        "{trae}/mcp.json",
        "trae/mcp.json",
        "xdg/Trae/User/mcp.json",
        darwin=f"{SUPPORT}/Trae/User/mcp.json",
        win32="appdata/Trae/User/mcp.json",
    ),
    Case("{workspace}/.trae/mcp.json", "trae/mcp.json", "home/shop/.trae/mcp.json"),
    Case("{kimi}/mcp.json", "kimi/mcp.json", "home/.kimi-code/mcp.json"),
    Case("{kimi_cli}/mcp.json", "kimi/mcp.json", "home/.kimi/mcp.json"),
    Case("{cwd}/.kimi-code/mcp.json", "kimi/mcp.json", "home/shop/.kimi-code/mcp.json"),
    Case("{home}/.factory/mcp.json", "droid/mcp.json", "home/.factory/mcp.json"),
    Case("{within}/.factory/mcp.json", "droid/mcp.json", "home/shop/.factory/mcp.json"),
    Case(
        "{crush_data}/crush.json",
        "crush/crush.json",
        "home/.local/share/crush/crush.json",
        win32="local/crush/crush.json",
    ),
    Case("{crush}/crush.json", "crush/crush.json", "xdg/crush/crush.json"),
    Case("{system}/etc/crush/crush.json", "crush/crush.json", "system/etc/crush/crush.json"),
    Case("{within}/.crush.json", "crush/crush.json", "home/shop/.crush.json"),
    Case("{within}/crush.json", "crush/crush.json", "home/shop/crush.json"),
    Case("{vibe}/config.toml", "vibe/config.toml", "home/.vibe/config.toml"),
    Case("{within}/.vibe/config.toml", "vibe/config.toml", "home/shop/.vibe/config.toml"),
    Case(
        "{claude_settings}/plugins/installed_plugins.json",
        "claude-code/installed_plugins.json",
        "home/.claude/plugins/installed_plugins.json",
    ),
    Case(
        "{gemini}/extensions/*/gemini-extension.json",
        "gemini/gemini-extension.json",
        "home/.gemini/extensions/maps/gemini-extension.json",
    ),
    Case(
        "{qwen}/extensions/*/qwen-extension.json",
        "qwen/qwen-extension.json",
        "home/.qwen/extensions/maps/qwen-extension.json",
    ),
)
