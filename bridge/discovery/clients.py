"""Where each client keeps its servers: data, no behaviour.

Owns the table of locations, its order and the names of the sources. Reads nothing and decides
nothing: `locations.py` turns a template into paths and `parser.py` applies a dialect.

Precedence. `LOCATIONS` is in order of strength, and the first file that defines a name wins; a
weaker definition of the same name is reported as shadowed, never merged in.

1. The file that `MCP_SERVERS_CONFIG` names (JSON, or TOML when it ends in `.toml`).
2. Claude Code, managed: `managed-mcp.json` in the system's directory for it.
3. Claude Code, local: `projects.<directory>.mcpServers` in `~/.claude.json`, where the directory is
   the repository's root (a worktree counts as its main repository), else the working directory.
4. Claude Code, user: `mcpServers` in `~/.claude.json`.
5. `~/.config/mcp/servers/*.json`, by file name.
6. `~/MCPs/*.json`, by file name.
7. Claude Desktop: `claude_desktop_config.json` in its directory on this platform, on Windows first
   that of the store's build.
8. macOS only: `mcp/servers/*.json` in `~/Library/Application Support/Claude Code`, then in
   `.../Claude`; then `claude_code_config.json` in the same two.
9. The other clients' files of the user and of the system, client by client in the order of
   `_OTHER_USER`; then what plugins and extensions bring.
10. The working directory: `.mcp.json` there, then in each directory above it up to home, or up to
    the repository's root when the working directory is not below home; `./mcp-servers/*.json`,
    `./claude_code_config.json`, `./claude_desktop_config.json`; then the other clients' files of
    the project, in the same order. Last, so that no repository takes the name of a server that the
    user defined.

What holds a name and what does not: an entry with `"disabled": true` or `"enabled": false` does, so
that a stronger file can turn a server off; an entry skipped for any other reason does not, so that
a broken or rejected one never hides a good one.

`CLAUDE_CONFIG_DIR` moves `~/.claude.json` and `~/.claude`, as it does for Claude Code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bridge.discovery.client_dialects import (
    AMAZON_Q,
    AMP,
    ANTIGRAVITY,
    CLAUDE_CODE,
    CLAUDE_CODE_LOCAL,
    CLAUDE_CODE_SETTINGS,
    CLAUDE_CODE_STATE,
    CLAUDE_DESKTOP,
    CLINE,
    CODEX,
    CONTINUE_JSON,
    CONTINUE_YAML,
    COPILOT,
    CRUSH,
    CURSOR,
    DROID,
    GEMINI,
    GENERIC,
    GENERIC_OR_BARE,
    GOOSE,
    INTELLIJ,
    JUNIE,
    KILO,
    KIMI,
    KIRO,
    LM_STUDIO,
    OPENCODE,
    QWEN,
    ROO,
    TRAE,
    VIBE,
    VSCODE,
    VSCODE_SETTINGS,
    WINDSURF,
    ZED,
)
from bridge.discovery.dialect import (
    PLATFORMS,
    ApprovalFile,
    Dialect,
    Format,
    LimitFile,
    Location,
    Platform,
    TrustFile,
)
from bridge.discovery.user_lists import codex_trusts, gemini_trusts, vibe_trusts


@dataclass(frozen=True)
class _Client:
    """Whose files they are: the name of the source, what users are shown, the usual format."""

    id: str
    name: str
    format: Format = "jsonc"

    def files(
        self,
        scope: str,
        dialect: Dialect,
        *templates: str,
        format: Format | None = None,
        platforms: tuple[Platform, ...] = PLATFORMS,
        approvable: bool = False,
        unless: str = "",
        holds: Literal["servers", "extension", "plugins"] = "servers",
    ) -> tuple[Location, ...]:
        """Return the rows of some files that are read alike, the strongest first."""
        return tuple(
            Location(
                id=self.id,
                client=self.name,
                scope=scope,
                template=template,
                dialect=dialect,
                platforms=platforms,
                format=format or self.format,
                required=not self.id,
                in_project=scope == "project",
                approvable=approvable,
                unless=unless,
                holds=holds,
            )
            for template in templates
        )


_LINUX: tuple[Platform, ...] = ("linux",)
_MAC: tuple[Platform, ...] = ("darwin",)
_WINDOWS: tuple[Platform, ...] = ("win32",)

_EXTRA_FILES = _Client("", "MCP_SERVERS_CONFIG", "by suffix")
_CURSOR_FILES = _Client("cursor", "Cursor")
_VSCODE_FILES = _Client("vscode", "VS Code")
_WINDSURF_FILES = _Client("windsurf", "Windsurf")
_CODEX_FILES = _Client("codex", "Codex", "toml")
_GEMINI_FILES = _Client("gemini", "Gemini CLI", "json with comments")
_ZED_FILES = _Client("zed", "Zed")
_CONTINUE_FILES = _Client("continue", "Continue", "yaml")
_CLINE_FILES = _Client("cline", "Cline", "json")
_GOOSE_FILES = _Client("goose", "Goose", "yaml")
_LM_STUDIO_FILES = _Client("lm-studio", "LM Studio")
_AMAZON_Q_FILES = _Client("amazon-q", "Amazon Q", "json")
_KIRO_FILES = _Client("kiro", "Kiro")
_JETBRAINS_FILES = _Client("jetbrains", "JetBrains")
_ANTIGRAVITY_FILES = _Client("antigravity", "Antigravity")
_COPILOT_FILES = _Client("copilot", "Copilot CLI")
_QWEN_FILES = _Client("qwen", "Qwen Code", "json with comments")
_AMP_FILES = _Client("amp", "Amp")
_ROO_FILES = _Client("roo", "Roo Code", "json")
_KILO_FILES = _Client("kilo", "Kilo Code")
_TRAE_FILES = _Client("trae", "Trae")
_KIMI_FILES = _Client("kimi", "Kimi Code", "json")
_DROID_FILES = _Client("droid", "Droid", "json with comments")
_CRUSH_FILES = _Client("crush", "Crush", "json")
_VIBE_FILES = _Client("vibe", "Mistral Vibe", "toml")
_CLAUDE_CODE_FILES = _Client("claude-code", "Claude Code", "json")
_DESKTOP_FILES = _Client("claude-desktop", "Claude Desktop", "json")
_DIRECTORY_FILES = _Client("mcp-directory", "MCP directory", "json")
_OPENCODE_FILES = _Client("opencode", "OpenCode")
_DESKTOP_FILE = "Claude/claude_desktop_config.json"

_MANAGED: tuple[tuple[str, tuple[Platform, ...]], ...] = (
    ("{system}/etc/claude-code", _LINUX),
    ("{system}/Library/Application Support/ClaudeCode", _MAC),
    ("{programs}/ClaudeCode", _WINDOWS),
)

_CLAUDE_USER = (
    *_EXTRA_FILES.files("extra", GENERIC_OR_BARE, "{extra}"),
    *(
        row
        for folder, only in _MANAGED
        for row in _CLAUDE_CODE_FILES.files(
            "managed", CLAUDE_CODE, f"{folder}/managed-mcp.json", platforms=only
        )
    ),
    *_CLAUDE_CODE_FILES.files("local", CLAUDE_CODE_LOCAL, "{claude_state}/.claude.json"),
    *_CLAUDE_CODE_FILES.files("user", CLAUDE_CODE_STATE, "{claude_state}/.claude.json"),
    *_CLAUDE_CODE_FILES.files("user", CLAUDE_CODE_SETTINGS, "{claude_settings}/settings.json"),
    *_DIRECTORY_FILES.files(
        "user", GENERIC_OR_BARE, "{home}/.config/mcp/servers/*.json", "{home}/MCPs/*.json"
    ),
    *_DESKTOP_FILES.files("user", CLAUDE_DESKTOP, f"{{config}}/{_DESKTOP_FILE}", platforms=_LINUX),
    *_DESKTOP_FILES.files("user", CLAUDE_DESKTOP, f"{{library}}/{_DESKTOP_FILE}", platforms=_MAC),
    # The build of Microsoft's store sees a directory of its own in place of %APPDATA%.
    *_DESKTOP_FILES.files(
        "user",
        CLAUDE_DESKTOP,
        f"{{packages}}/Claude_*/LocalCache/Roaming/{_DESKTOP_FILE}",
        platforms=_WINDOWS,
    ),
    *_DESKTOP_FILES.files(
        "user", CLAUDE_DESKTOP, f"{{appdata}}/{_DESKTOP_FILE}", platforms=_WINDOWS
    ),
    *_DIRECTORY_FILES.files(
        "user",
        GENERIC_OR_BARE,
        "{library}/Claude Code/mcp/servers/*.json",
        "{library}/Claude/mcp/servers/*.json",
        platforms=_MAC,
    ),
    *_CLAUDE_CODE_FILES.files(
        "user",
        CLAUDE_CODE_STATE,
        "{library}/Claude Code/claude_code_config.json",
        "{library}/Claude/claude_code_config.json",
        platforms=_MAC,
    ),
)

_CLAUDE_PROJECT = (
    *_CLAUDE_CODE_FILES.files("project", CLAUDE_CODE, "{upwards}/.mcp.json", approvable=True),
    *_CLAUDE_CODE_FILES.files(
        "project",
        CLAUDE_CODE_SETTINGS,
        "{workspace}/.claude/settings.local.json",
        "{workspace}/.claude/settings.json",
    ),
    *_DIRECTORY_FILES.files("project", GENERIC_OR_BARE, "{cwd}/mcp-servers/*.json"),
    *_CLAUDE_CODE_FILES.files("project", CLAUDE_CODE_STATE, "{cwd}/claude_code_config.json"),
    *_DESKTOP_FILES.files("project", CLAUDE_DESKTOP, "{cwd}/claude_desktop_config.json"),
)


_OTHER_USER = (
    *_CURSOR_FILES.files("user", CURSOR, "{home}/.cursor/mcp.json"),
    *_VSCODE_FILES.files("user", VSCODE, "{vscode}/mcp.json"),
    *_VSCODE_FILES.files("user", VSCODE_SETTINGS, "{vscode}/settings.json"),
    *_VSCODE_FILES.files("profile", VSCODE, "{vscode}/profiles/*/mcp.json"),
    *_WINDSURF_FILES.files(
        "user",
        WINDSURF,
        "{devin}/config.json",
        "{devin}/mcp_config.json",
        "{home}/.codeium/windsurf/mcp_config.json",
        "{home}/.codeium/mcp_config.json",
    ),
    *_CODEX_FILES.files("user", CODEX, "{codex}/config.toml"),
    *_CODEX_FILES.files("system", CODEX, "{codex_system}/config.toml"),
    *(
        row
        for scope, template in (
            ("system", "{gemini_system}/settings.json"),
            ("user", "{gemini}/settings.json"),
            ("defaults", "{gemini_system}/system-defaults.json"),
        )
        for row in _GEMINI_FILES.files(scope, GEMINI, template)
    ),
    *_ZED_FILES.files("user", ZED, "{zed}/settings.json"),
    *_CONTINUE_FILES.files(
        "user", CONTINUE_YAML, "{continue}/mcpServers/*.yaml", "{continue}/mcpServers/*.yml"
    ),
    *_CONTINUE_FILES.files(
        "user", CONTINUE_JSON, "{continue}/mcpServers/*.json", format="json with comments"
    ),
    *_CONTINUE_FILES.files("user", CONTINUE_YAML, "{continue}/config.yaml"),
    *_CLINE_FILES.files(
        "user",
        CLINE,
        "{cline_settings}",
        "{home}/.cline/mcp.json",
        "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "{home}/Documents/Cline/MCP/cline_mcp_settings.json",
    ),
    *_OPENCODE_FILES.files(
        "managed", OPENCODE, "{opencode_system}/opencode.jsonc", "{opencode_system}/opencode.json"
    ),
    *_OPENCODE_FILES.files(
        "user",
        OPENCODE,
        "{opencode_extra}/opencode.jsonc",
        "{opencode_extra}/opencode.json",
        "{opencode_file}",
        "{opencode}/opencode.jsonc",
        "{opencode}/opencode.json",
        "{opencode}/config.json",
    ),
    # Where the first public bridge of this kind looked, in the shape it read there.
    *_OPENCODE_FILES.files("user", GENERIC, "{home}/.opencode.json"),
    *_OPENCODE_FILES.files(
        "user",
        GENERIC,
        "{opencode_app}/opencode_config.json",
        "{opencode_app}/opencode_desktop_config.json",
        platforms=_MAC,
    ),
    *_GOOSE_FILES.files("user", GOOSE, "{goose}/config.yaml"),
    *_LM_STUDIO_FILES.files(
        "user", LM_STUDIO, "{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json"
    ),
    *_AMAZON_Q_FILES.files(
        "user",
        AMAZON_Q,
        "{home}/.aws/amazonq/mcp.json",
        "{home}/.aws/amazonq/default.json",
        "{home}/.aws/amazonq/agents/*.json",
        "{home}/.aws/amazonq/cli-agents/*.json",
    ),
    *_KIRO_FILES.files("user", KIRO, "{home}/.kiro/settings/mcp.json"),
    *_KIRO_FILES.files("agent", KIRO, "{home}/.kiro/agents/*.json"),
    *_JETBRAINS_FILES.files("user", JUNIE, "{home}/.junie/mcp/mcp.json"),
    *_JETBRAINS_FILES.files("user", INTELLIJ, "{intellij}/mcp.json"),
    *_ANTIGRAVITY_FILES.files(
        "user",
        ANTIGRAVITY,
        "{home}/.gemini/config/mcp_config.json",
        "{home}/.gemini/antigravity/mcp_config.json",
        "{home}/.antigravity/mcp.json",
        "{home}/.antigravity/settings.json",
    ),
    *_COPILOT_FILES.files("user", COPILOT, "{copilot}/mcp-config.json"),
    *(
        row
        for scope, template in (
            ("system", "{qwen_system}/settings.json"),
            ("user", "{qwen}/settings.json"),
            ("defaults", "{qwen_system}/system-defaults.json"),
        )
        for row in _QWEN_FILES.files(scope, QWEN, template)
    ),
    *_AMP_FILES.files("managed", AMP, "{amp_system}/managed-settings.json"),
    *_AMP_FILES.files("user", AMP, "{config}/amp/settings.json"),
    *_AMP_FILES.files("user", AMP, "{config}/amp/settings.jsonc", unless="settings.json"),
    *_ROO_FILES.files(
        "user",
        ROO,
        "{vscode}/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
    ),
    *_KILO_FILES.files("user", KILO, "{config}/kilo/kilo.jsonc", "{config}/kilo/kilo.json"),
    *_KILO_FILES.files(
        "user",
        ROO,
        "{vscode}/globalStorage/kilocode.kilo-code/settings/mcp_settings.json",
        "{home}/.kilocode/cli/global/settings/mcp_settings.json",
        format="json",
    ),
    *_TRAE_FILES.files("user", TRAE, "{trae}/mcp.json"),
    *_KIMI_FILES.files("user", KIMI, "{kimi}/mcp.json", "{kimi_cli}/mcp.json"),
    *_DROID_FILES.files("user", DROID, "{home}/.factory/mcp.json"),
    *_CRUSH_FILES.files("user", CRUSH, "{crush_data}/crush.json", "{crush}/crush.json"),
    *_CRUSH_FILES.files(
        "system", CRUSH, "{system}/etc/crush/crush.json", platforms=("linux", "darwin")
    ),
    *_VIBE_FILES.files("user", VIBE, "{vibe}/config.toml"),
    # What plugins and extensions bring is weaker than what the user wrote.
    *_CLAUDE_CODE_FILES.files(
        "plugin", CLAUDE_CODE, "{claude_settings}/plugins/installed_plugins.json", holds="plugins"
    ),
    *_GEMINI_FILES.files(
        "extension", GEMINI, "{gemini}/extensions/*/gemini-extension.json", holds="extension"
    ),
    *_QWEN_FILES.files(
        "extension", QWEN, "{qwen}/extensions/*/qwen-extension.json", holds="extension"
    ),
)

_OTHER_PROJECT = (
    *_CURSOR_FILES.files("project", CURSOR, "{workspace}/.cursor/mcp.json"),
    *_VSCODE_FILES.files("project", VSCODE, "{workspace}/.vscode/mcp.json"),
    *_WINDSURF_FILES.files(
        "project",
        WINDSURF,
        "{workspace}/.devin/config.local.json",
        "{workspace}/.devin/config.json",
        "{workspace}/.devin/mcp_config.json",
    ),
    *_CODEX_FILES.files("project", CODEX, "{within}/.codex/config.toml"),
    *_GEMINI_FILES.files("project", GEMINI, "{cwd}/.gemini/settings.json"),
    *_ZED_FILES.files("project", ZED, "{workspace}/.zed/settings.json"),
    *_CONTINUE_FILES.files(
        "project",
        CONTINUE_YAML,
        "{workspace}/.continue/mcpServers/*.yaml",
        "{workspace}/.continue/mcpServers/*.yml",
    ),
    *_CONTINUE_FILES.files(
        "project",
        CONTINUE_JSON,
        "{workspace}/.continue/mcpServers/*.json",
        format="json with comments",
    ),
    *_OPENCODE_FILES.files(
        "project",
        OPENCODE,
        "{within}/opencode.jsonc",
        "{within}/opencode.json",
        "{within}/.opencode/opencode.jsonc",
        "{within}/.opencode/opencode.json",
    ),
    *_OPENCODE_FILES.files(
        "project", GENERIC, "{cwd}/opencode_config.json", "{cwd}/opencode_desktop_config.json"
    ),
    *_AMAZON_Q_FILES.files(
        "project",
        AMAZON_Q,
        "{cwd}/.amazonq/mcp.json",
        "{cwd}/.amazonq/default.json",
        "{cwd}/.amazonq/agents/*.json",
        "{cwd}/.amazonq/cli-agents/*.json",
    ),
    *_KIRO_FILES.files(
        "project", KIRO, "{workspace}/.kiro/settings/mcp.json", "{workspace}/.kiro/agents/*.json"
    ),
    *_JETBRAINS_FILES.files(
        "project", JUNIE, "{workspace}/.junie/mcp/mcp.json", "{workspace}/.air/mcp.json"
    ),
    *_ANTIGRAVITY_FILES.files("project", ANTIGRAVITY, "{workspace}/.agents/mcp_config.json"),
    *_COPILOT_FILES.files("project", COPILOT, "{within}/.github/mcp.json", unless="../.mcp.json"),
    *_QWEN_FILES.files("project", QWEN, "{cwd}/.qwen/settings.json"),
    *_AMP_FILES.files("project", AMP, "{within}/.amp/settings.json"),
    *_AMP_FILES.files("project", AMP, "{within}/.amp/settings.jsonc", unless="settings.json"),
    *_ROO_FILES.files("project", ROO, "{workspace}/.roo/mcp.json"),
    *_KILO_FILES.files(
        "project",
        KILO,
        "{within}/.kilo/kilo.jsonc",
        "{within}/.kilo/kilo.json",
        "{within}/kilo.jsonc",
        "{within}/kilo.json",
    ),
    *_KILO_FILES.files("project", ROO, "{workspace}/.kilocode/mcp.json", format="json"),
    *_TRAE_FILES.files("project", TRAE, "{workspace}/.trae/mcp.json"),
    *_KIMI_FILES.files("project", KIMI, "{cwd}/.kimi-code/mcp.json"),
    *_DROID_FILES.files("project", DROID, "{within}/.factory/mcp.json"),
    *_CRUSH_FILES.files("project", CRUSH, "{within}/.crush.json", "{within}/crush.json"),
    *_VIBE_FILES.files("project", VIBE, "{within}/.vibe/config.toml"),
)

LOCATIONS: tuple[Location, ...] = (*_CLAUDE_USER, *_OTHER_USER, *_CLAUDE_PROJECT, *_OTHER_PROJECT)

SOURCE_IDS: tuple[str, ...] = tuple(dict.fromkeys(row.id for row in LOCATIONS if row.id))
"""What `MCP_BRIDGE_SOURCES` may name."""

APPROVAL_FILES = (
    ApprovalFile(template="{claude_state}/.claude.json", per_project=True),
    ApprovalFile(template="{claude_settings}/settings.json"),
    ApprovalFile(template="{project}/.claude/settings.local.json", grants="trusted"),
    ApprovalFile(template="{project}/.claude/settings.json", grants="never"),
)

LIMIT_FILES = (
    *(
        LimitFile(template=f"{folder}/{name}", platforms=only)
        for folder, only in _MANAGED
        for name in ("managed-settings.json", "managed-settings.d/*.json")
    ),
    LimitFile(template="{claude_settings}/settings.json", managed=False),
)

TRUST_FILES = (
    TrustFile(
        id="codex",
        client="Codex",
        template="{codex}/config.toml",
        format="toml",
        trusts=codex_trusts,
    ),
    TrustFile(
        id="gemini",
        client="Gemini CLI",
        template="{gemini_trust}",
        format="json with comments",
        trusts=gemini_trusts,
    ),
    TrustFile(
        id="vibe",
        client="Mistral Vibe",
        template="{vibe}/trusted_folders.toml",
        format="toml",
        trusts=vibe_trusts,
    ),
)
