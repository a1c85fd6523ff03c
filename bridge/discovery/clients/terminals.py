"""Command-line agents: Codex, Gemini CLI, OpenCode, Goose, Amazon Q, Copilot CLI."""

from __future__ import annotations

from bridge.discovery.clients.claude import GENERIC
from bridge.discovery.clients.shape import (
    KNOWN_TRANSPORTS,
    MILLISECOND,
    PLATFORMS,
    SECOND,
    Dialect,
    Location,
    Platform,
    TrustFile,
)
from bridge.discovery.trust import codex_trusts, gemini_trusts

CODEX = Dialect(
    name="Codex",
    server_keys=("mcp_servers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=False,
    header_keys=("http_headers",),
    servers_expected=False,
    syntax="",
    call_timeouts={"tool_timeout_sec": SECOND},
    start_timeouts={"startup_timeout_sec": SECOND, "startup_timeout_ms": MILLISECOND},
    only_keys=("enabled_tools",),
    without_keys=("disabled_tools",),
    env_names="env_vars",
    bearer_env="bearer_token_env_var",
    env_headers="env_http_headers",
    cwd_at="workspace",
)

GEMINI = Dialect(
    name="Gemini CLI",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=False,
    url_keys=("httpUrl", "url"),
    url_transports={"httpUrl": "http"},
    servers_expected=False,
    syntax="shell",
    only_keys=("includeTools",),
    without_keys=("excludeTools",),
    gates=("mcp.allowed", "mcp.excluded"),
    cwd_at="workspace",
)

OPENCODE = Dialect(
    name="OpenCode",
    server_keys=("mcp.servers", "mcp"),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=False,
    env_keys=("environment",),
    servers_expected=False,
    command_list=True,
    syntax="opencode",
    call_timeouts={"timeout": MILLISECOND},
    cwd_at="workspace",
)

GOOSE = Dialect(
    name="Goose",
    server_keys=("extensions",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    url_keys=("uri", "url"),
    env_keys=("envs",),
    command_keys=("cmd", "command"),
    servers_expected=False,
    foreign={"type": frozenset({"builtin", "platform", "frontend", "inline_python"})},
    syntax="",
    call_timeouts={"timeout": SECOND},
    only_keys=("available_tools",),
    empty_only=False,
    env_names="env_keys",
)

AMAZON_Q = Dialect(
    name="Amazon Q",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=False,
    servers_expected=False,
    syntax="env",
    expanded=frozenset({"env", "headers"}),
    without_keys=("disabledTools",),
    cwd_at="workspace",
)

COPILOT = Dialect(
    name="Copilot CLI",
    server_keys=("mcpServers",),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
    syntax="shell",
    expanded=frozenset({"env", "headers"}),
    only_keys=("tools",),
    cwd_at="workspace",
)


def _codex(scope: str, template: str) -> Location:
    return Location(
        id="codex",
        client="Codex",
        scope=scope,
        template=template,
        dialect=CODEX,
        format="toml",
        in_project=scope == "project",
    )


def _gemini(scope: str, template: str) -> Location:
    return Location(
        id="gemini",
        client="Gemini CLI",
        scope=scope,
        template=template,
        dialect=GEMINI,
        format="json with comments",
        in_project=scope == "project",
    )


def _opencode(
    scope: str,
    template: str,
    dialect: Dialect = OPENCODE,
    platforms: tuple[Platform, ...] = PLATFORMS,
) -> Location:
    return Location(
        id="opencode",
        client="OpenCode",
        scope=scope,
        template=template,
        dialect=dialect,
        platforms=platforms,
        format="jsonc",
        in_project=scope == "project",
    )


def _amazon_q(scope: str, template: str) -> Location:
    return Location(
        id="amazon-q",
        client="Amazon Q",
        scope=scope,
        template=template,
        dialect=AMAZON_Q,
        in_project=scope == "project",
    )


def _copilot(scope: str, template: str) -> Location:
    return Location(
        id="copilot",
        client="Copilot CLI",
        scope=scope,
        template=template,
        dialect=COPILOT,
        format="jsonc",
        in_project=scope == "project",
    )


CODEX_USER = (
    _codex("user", "{codex}/config.toml"),
    _codex("system", "{codex_system}/config.toml"),
)
CODEX_PROJECT = (_codex("project", "{within}/.codex/config.toml"),)

GEMINI_USER = (
    _gemini("system", "{gemini_system}/settings.json"),
    _gemini("user", "{gemini}/settings.json"),
    _gemini("defaults", "{gemini_system}/system-defaults.json"),
)
GEMINI_PROJECT = (_gemini("project", "{cwd}/.gemini/settings.json"),)

OPENCODE_USER = (
    _opencode("managed", "{opencode_system}/opencode.jsonc"),
    _opencode("managed", "{opencode_system}/opencode.json"),
    _opencode("user", "{opencode_extra}/opencode.jsonc"),
    _opencode("user", "{opencode_extra}/opencode.json"),
    _opencode("user", "{opencode_file}"),
    _opencode("user", "{opencode}/opencode.jsonc"),
    _opencode("user", "{opencode}/opencode.json"),
    _opencode("user", "{opencode}/config.json"),
    # Where the first public bridge of this kind looked, in the shape it read there.
    _opencode("user", "{home}/.opencode.json", GENERIC),
    _opencode("user", "{opencode_app}/opencode_config.json", GENERIC, ("darwin",)),
    _opencode("user", "{opencode_app}/opencode_desktop_config.json", GENERIC, ("darwin",)),
)
OPENCODE_PROJECT = (
    _opencode("project", "{within}/opencode.jsonc"),
    _opencode("project", "{within}/opencode.json"),
    _opencode("project", "{within}/.opencode/opencode.jsonc"),
    _opencode("project", "{within}/.opencode/opencode.json"),
    _opencode("project", "{cwd}/opencode_config.json", GENERIC),
    _opencode("project", "{cwd}/opencode_desktop_config.json", GENERIC),
)

GOOSE_USER = (
    Location(
        id="goose",
        client="Goose",
        scope="user",
        template="{goose}/config.yaml",
        dialect=GOOSE,
        format="yaml",
    ),
)

AMAZON_Q_USER = (
    _amazon_q("user", "{home}/.aws/amazonq/mcp.json"),
    _amazon_q("user", "{home}/.aws/amazonq/default.json"),
    _amazon_q("user", "{home}/.aws/amazonq/agents/*.json"),
    _amazon_q("user", "{home}/.aws/amazonq/cli-agents/*.json"),
)
AMAZON_Q_PROJECT = (
    _amazon_q("project", "{cwd}/.amazonq/mcp.json"),
    _amazon_q("project", "{cwd}/.amazonq/default.json"),
    _amazon_q("project", "{cwd}/.amazonq/agents/*.json"),
    _amazon_q("project", "{cwd}/.amazonq/cli-agents/*.json"),
)

COPILOT_USER = (_copilot("user", "{copilot}/mcp-config.json"),)
COPILOT_PROJECT = (_copilot("project", "{within}/.github/mcp.json"),)

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
