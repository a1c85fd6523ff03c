"""Editors and desktop applications: Cursor, VS Code, Windsurf, Zed, Continue, Cline, LM Studio,
Kiro, JetBrains, Antigravity.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.discovery.clients.shape import (
    KNOWN_TRANSPORTS,
    MILLISECOND,
    SECOND,
    Dialect,
    Location,
)

CURSOR = Dialect(
    name="Cursor",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="cursor",
    env_file="envFile",
    cwd_at="workspace",
)

VSCODE = Dialect(
    name="VS Code",
    server_keys=("servers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="vscode",
    env_file="envFile",
    inputs=True,
    cwd_at="workspace",
)

VSCODE_SETTINGS = Dialect(
    name="VS Code's settings, where servers stood before it had a file for them",
    server_keys=("mcp.servers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="vscode",
    env_file="envFile",
    inputs=True,
    cwd_at="workspace",
)

INTELLIJ = replace(
    VSCODE,
    name="Copilot's plugin for JetBrains",
    header_keys=("headers", "requestInit.headers"),
)

WINDSURF = Dialect(
    name="Windsurf",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    url_keys=("serverUrl", "url"),
    servers_expected=False,
    syntax="windsurf",
    without_keys=("disabledTools",),
    cwd_at="workspace",
)

ZED = Dialect(
    name="Zed",
    server_keys=("context_servers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=False,
    servers_expected=False,
    command_object=True,
    foreign={"source": frozenset({"extension"})},
    foreign_fields=frozenset({"settings"}),
    syntax="",
    call_timeouts={"timeout": SECOND},
    cwd_at="workspace",
)

CONTINUE_YAML = Dialect(
    name="Continue",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    header_keys=("requestOptions.headers",),
    servers_expected=False,
    listed=True,
    foreign_fields=frozenset({"uses"}),
    syntax="secrets",
    call_timeouts={},
    start_timeouts={"connectionTimeout": MILLISECOND},
    api_key="apiKey",
    cwd_at="workspace",
)

CONTINUE_JSON = Dialect(
    name="Continue, a file as other clients have them",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    bare_server=True,
    syntax="braces",
    expanded=frozenset({"env"}),
    cwd_at="workspace",
)

CLINE = Dialect(
    name="Cline",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="sse",
    scalars_as_text=False,
    type_keys=("type", "transportType"),
    servers_expected=False,
    nested="transport",
    syntax="env",
    call_timeouts={"timeout": SECOND},
    cwd_at="workspace",
)

LM_STUDIO = Dialect(
    name="LM Studio",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="",
)

KIRO = Dialect(
    name="Kiro",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="braces",
    expanded=frozenset({"env", "headers"}),
    without_keys=("disabledTools",),
    cwd_at="workspace",
)

JUNIE = Dialect(
    name="JetBrains Junie and Air",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="",
    cwd_at="workspace",
)

ANTIGRAVITY = Dialect(
    name="Antigravity",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    url_keys=("serverUrl", "url"),
    servers_expected=False,
    syntax="",
    without_keys=("disabledTools",),
    cwd_at="workspace",
)


def _cursor(scope: str, template: str) -> Location:
    return Location(
        id="cursor",
        client="Cursor",
        scope=scope,
        template=template,
        dialect=CURSOR,
        format="jsonc",
        in_project=scope == "project",
    )


def _vscode(scope: str, template: str, dialect: Dialect = VSCODE) -> Location:
    return Location(
        id="vscode",
        client="VS Code",
        scope=scope,
        template=template,
        dialect=dialect,
        format="jsonc",
        in_project=scope == "project",
    )


def _windsurf(scope: str, template: str) -> Location:
    return Location(
        id="windsurf",
        client="Windsurf",
        scope=scope,
        template=template,
        dialect=WINDSURF,
        format="jsonc",
        in_project=scope == "project",
    )


def _zed(scope: str, template: str) -> Location:
    return Location(
        id="zed",
        client="Zed",
        scope=scope,
        template=template,
        dialect=ZED,
        format="jsonc",
        in_project=scope == "project",
    )


def _continue(scope: str, template: str) -> Location:
    yaml = not template.endswith(".json")
    return Location(
        id="continue",
        client="Continue",
        scope=scope,
        template=template,
        dialect=CONTINUE_YAML if yaml else CONTINUE_JSON,
        format="yaml" if yaml else "json with comments",
        in_project=scope == "project",
    )


def _cline(template: str) -> Location:
    return Location(
        id="cline", client="Cline", scope="user", template=template, dialect=CLINE, format="json"
    )


def _lm_studio(template: str) -> Location:
    return Location(
        id="lm-studio",
        client="LM Studio",
        scope="user",
        template=template,
        dialect=LM_STUDIO,
        format="jsonc",
    )


def _kiro(scope: str, template: str) -> Location:
    return Location(
        id="kiro",
        client="Kiro",
        scope=scope,
        template=template,
        dialect=KIRO,
        format="jsonc",
        in_project=scope == "project",
    )


def _jetbrains(scope: str, template: str, dialect: Dialect = JUNIE) -> Location:
    return Location(
        id="jetbrains",
        client="JetBrains",
        scope=scope,
        template=template,
        dialect=dialect,
        format="jsonc",
        in_project=scope == "project",
    )


def _antigravity(scope: str, template: str) -> Location:
    return Location(
        id="antigravity",
        client="Antigravity",
        scope=scope,
        template=template,
        dialect=ANTIGRAVITY,
        format="jsonc",
        in_project=scope == "project",
    )


CURSOR_USER = (_cursor("user", "{home}/.cursor/mcp.json"),)
CURSOR_PROJECT = (_cursor("project", "{workspace}/.cursor/mcp.json"),)

VSCODE_USER = (
    _vscode("user", "{vscode}/mcp.json"),
    _vscode("user", "{vscode}/settings.json", VSCODE_SETTINGS),
)
VSCODE_PROJECT = (_vscode("project", "{workspace}/.vscode/mcp.json"),)

WINDSURF_USER = (
    _windsurf("user", "{devin}/mcp_config.json"),
    _windsurf("user", "{home}/.codeium/windsurf/mcp_config.json"),
    _windsurf("user", "{home}/.codeium/mcp_config.json"),
)

ZED_USER = (_zed("user", "{zed}/settings.json"),)
ZED_PROJECT = (_zed("project", "{workspace}/.zed/settings.json"),)

CONTINUE_USER = (
    _continue("user", "{continue}/mcpServers/*.yaml"),
    _continue("user", "{continue}/mcpServers/*.yml"),
    _continue("user", "{continue}/mcpServers/*.json"),
    _continue("user", "{continue}/config.yaml"),
)
CONTINUE_PROJECT = (
    _continue("project", "{workspace}/.continue/mcpServers/*.yaml"),
    _continue("project", "{workspace}/.continue/mcpServers/*.yml"),
    _continue("project", "{workspace}/.continue/mcpServers/*.json"),
)

CLINE_USER = (
    _cline("{cline_settings}"),
    _cline("{home}/.cline/mcp.json"),
    _cline("{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
    _cline("{home}/Documents/Cline/MCP/cline_mcp_settings.json"),
)

LM_STUDIO_USER = (
    _lm_studio("{home}/.lmstudio/mcp.json"),
    _lm_studio("{home}/.cache/lm-studio/mcp.json"),
)

KIRO_USER = (_kiro("user", "{home}/.kiro/settings/mcp.json"),)
KIRO_PROJECT = (_kiro("project", "{workspace}/.kiro/settings/mcp.json"),)

JETBRAINS_USER = (
    _jetbrains("user", "{home}/.junie/mcp/mcp.json"),
    _jetbrains("user", "{intellij}/mcp.json", INTELLIJ),
)
JETBRAINS_PROJECT = (
    _jetbrains("project", "{workspace}/.junie/mcp/mcp.json"),
    _jetbrains("project", "{workspace}/.air/mcp.json"),
)

ANTIGRAVITY_USER = (
    _antigravity("user", "{home}/.gemini/config/mcp_config.json"),
    _antigravity("user", "{home}/.gemini/antigravity/mcp_config.json"),
    _antigravity("user", "{home}/.antigravity/mcp.json"),
    _antigravity("user", "{home}/.antigravity/settings.json"),
)
ANTIGRAVITY_PROJECT = (_antigravity("project", "{workspace}/.agents/mcp_config.json"),)
