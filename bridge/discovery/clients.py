"""Where each client keeps its servers, and how it spells them: data, no behaviour.

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
7. Claude Desktop: `claude_desktop_config.json` in its directory on this platform.
8. macOS only: `mcp/servers/*.json` in `~/Library/Application Support/Claude Code`, then in
   `.../Claude`; then `claude_code_config.json` in the same two.
9. The other clients' files of the user and of the system, client by client in the order of
   `_OTHER_USER`.
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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bridge.discovery.dialect import (
    MILLISECOND,
    PLATFORMS,
    SECOND,
    ApprovalFile,
    Dialect,
    Format,
    LimitFile,
    Location,
    Platform,
    TrustFile,
)
from bridge.discovery.user_lists import codex_trusts, gemini_trusts
from bridge.model import Transport

# --- how each client spells servers ---------------------------------------------------------------

_CLAUDE_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "sse": "sse",
}

CLAUDE_CODE = Dialect(
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
    servers_expected=True,
    cwd_at="file",
)
"""As Claude Code 2.1 reads its files: strict, so that both agree on which entries are good."""

CLAUDE_CODE_STATE = replace(CLAUDE_CODE, servers_expected=False)

CLAUDE_CODE_LOCAL = replace(CLAUDE_CODE_STATE, per_project=True)
"""Its state file, per project."""

CLAUDE_DESKTOP = Dialect(cwd_at="file")

GENERIC = Dialect(
    server_keys=("mcpServers", "servers", "mcp_servers"), servers_expected=True, cwd_at="file"
)
"""Files that no client owns: lenient, for nobody else decides how they are read."""

GENERIC_OR_BARE = replace(GENERIC, bare_server=True)
"""Files that may be one server, too, named after the file."""

CURSOR = Dialect(syntax="cursor", env_file="envFile")

VSCODE = Dialect(server_keys=("servers",), syntax="vscode", env_file="envFile", inputs=True)

VSCODE_SETTINGS = replace(VSCODE, server_keys=("mcp.servers",))
"""Where servers stood before it had a file for them."""

INTELLIJ = replace(VSCODE, header_keys=("headers", "requestInit.headers"))
"""Copilot's plugin for JetBrains."""

WINDSURF = Dialect(
    url_keys=("serverUrl", "url"), syntax="windsurf", without_keys=("disabledTools",)
)

ZED = Dialect(
    server_keys=("context_servers",),
    scalars_as_text=False,
    command_object=True,
    foreign={"source": frozenset({"extension"})},
    foreign_fields=frozenset({"settings"}),
    syntax="",
    call_timeouts={"timeout": SECOND},
)

CONTINUE_YAML = Dialect(
    header_keys=("requestOptions.headers",),
    listed=True,
    foreign_fields=frozenset({"uses"}),
    syntax="secrets",
    call_timeouts={},
    start_timeouts={"connectionTimeout": MILLISECOND},
    api_key="apiKey",
)

CONTINUE_JSON = Dialect(
    bare_server=True, servers_expected=True, syntax="braces", expanded=frozenset({"env"})
)
"""A file as other clients have them."""

CLINE = Dialect(
    untyped_url="sse",
    scalars_as_text=False,
    type_keys=("type", "transportType"),
    nested="transport",
    syntax="env",
    call_timeouts={"timeout": SECOND},
)

LM_STUDIO = Dialect(syntax="", cwd_at="file")

KIRO = Dialect(
    syntax="braces", expanded=frozenset({"env", "headers"}), without_keys=("disabledTools",)
)

JUNIE = Dialect(syntax="")
"""Air, too."""

ANTIGRAVITY = Dialect(url_keys=("serverUrl", "url"), syntax="", without_keys=("disabledTools",))

CODEX = Dialect(
    server_keys=("mcp_servers",),
    scalars_as_text=False,
    header_keys=("http_headers",),
    syntax="",
    call_timeouts={"tool_timeout_sec": SECOND},
    start_timeouts={"startup_timeout_sec": SECOND, "startup_timeout_ms": MILLISECOND},
    only_keys=("enabled_tools",),
    without_keys=("disabled_tools",),
    env_names="env_vars",
    bearer_env="bearer_token_env_var",
    env_headers="env_http_headers",
)

GEMINI = Dialect(
    scalars_as_text=False,
    url_keys=("httpUrl", "url"),
    url_transports={"httpUrl": "http"},
    syntax="shell",
    only_keys=("includeTools",),
    without_keys=("excludeTools",),
    gates=("mcp.allowed", "mcp.excluded"),
)

OPENCODE = Dialect(
    server_keys=("mcp.servers", "mcp"),
    scalars_as_text=False,
    env_keys=("environment",),
    command_list=True,
    syntax="opencode",
    call_timeouts={"timeout": MILLISECOND},
)

GOOSE = Dialect(
    server_keys=("extensions",),
    url_keys=("uri", "url"),
    env_keys=("envs",),
    command_keys=("cmd", "command"),
    foreign={"type": frozenset({"builtin", "platform", "frontend", "inline_python"})},
    syntax="",
    call_timeouts={"timeout": SECOND},
    only_keys=("available_tools",),
    empty_only=False,
    env_names="env_keys",
    cwd_at="file",
)

AMAZON_Q = Dialect(
    scalars_as_text=False,
    syntax="env",
    expanded=frozenset({"env", "headers"}),
    without_keys=("disabledTools",),
)

COPILOT = Dialect(syntax="shell", expanded=frozenset({"env", "headers"}), only_keys=("tools",))

# --- where they keep them -------------------------------------------------------------------------


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
    *_DIRECTORY_FILES.files(
        "user", GENERIC_OR_BARE, "{home}/.config/mcp/servers/*.json", "{home}/MCPs/*.json"
    ),
    *_DESKTOP_FILES.files("user", CLAUDE_DESKTOP, f"{{config}}/{_DESKTOP_FILE}", platforms=_LINUX),
    *_DESKTOP_FILES.files("user", CLAUDE_DESKTOP, f"{{library}}/{_DESKTOP_FILE}", platforms=_MAC),
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
    *_DIRECTORY_FILES.files("project", GENERIC_OR_BARE, "{cwd}/mcp-servers/*.json"),
    *_CLAUDE_CODE_FILES.files("project", CLAUDE_CODE_STATE, "{cwd}/claude_code_config.json"),
    *_DESKTOP_FILES.files("project", CLAUDE_DESKTOP, "{cwd}/claude_desktop_config.json"),
)


_OTHER_USER = (
    *_CURSOR_FILES.files("user", CURSOR, "{home}/.cursor/mcp.json"),
    *_VSCODE_FILES.files("user", VSCODE, "{vscode}/mcp.json"),
    *_VSCODE_FILES.files("user", VSCODE_SETTINGS, "{vscode}/settings.json"),
    *_WINDSURF_FILES.files(
        "user",
        WINDSURF,
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
)

_OTHER_PROJECT = (
    *_CURSOR_FILES.files("project", CURSOR, "{workspace}/.cursor/mcp.json"),
    *_VSCODE_FILES.files("project", VSCODE, "{workspace}/.vscode/mcp.json"),
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
    *_KIRO_FILES.files("project", KIRO, "{workspace}/.kiro/settings/mcp.json"),
    *_JETBRAINS_FILES.files(
        "project", JUNIE, "{workspace}/.junie/mcp/mcp.json", "{workspace}/.air/mcp.json"
    ),
    *_ANTIGRAVITY_FILES.files("project", ANTIGRAVITY, "{workspace}/.agents/mcp_config.json"),
    *_COPILOT_FILES.files("project", COPILOT, "{within}/.github/mcp.json"),
)

LOCATIONS: tuple[Location, ...] = (*_CLAUDE_USER, *_OTHER_USER, *_CLAUDE_PROJECT, *_OTHER_PROJECT)

SOURCE_IDS: tuple[str, ...] = tuple(dict.fromkeys(row.id for row in LOCATIONS if row.id))
"""What `MCP_BRIDGE_SOURCES` may name."""

# --- where they keep what the user said about servers ---------------------------------------------

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
        template="{gemini}/trustedFolders.json",
        format="json with comments",
        trusts=gemini_trusts,
    ),
)
