"""The dialects of all clients, as data. `clients.py` lists their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bridge.discovery.dialect import MILLISECOND, SECOND, Dialect
from bridge.model import Transport

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
"""The rules of Claude Code 2.1: strict, so that both accept the same entries."""

CLAUDE_CODE_STATE = replace(CLAUDE_CODE, servers_expected=False)

CLAUDE_CODE_LOCAL = replace(CLAUDE_CODE_STATE, per_project=True)  # The state file's projects.

CLAUDE_CODE_SETTINGS = replace(
    CLAUDE_CODE_STATE, server_keys=(), elsewhere="~/.claude.json or .mcp.json"
)

CLAUDE_DESKTOP = Dialect(cwd_at="file")

GENERIC = Dialect(
    server_keys=("mcpServers", "servers", "mcp_servers"), servers_expected=True, cwd_at="file"
)
"""Files without a client of their own. Lenient, since no client defines their format."""

GENERIC_OR_BARE = replace(GENERIC, bare_server=True)
"""Files that may also be a single server, named after the file."""

CURSOR = Dialect(syntax="cursor", env_file="envFile")

VSCODE = Dialect(server_keys=("servers",), syntax="vscode", env_file="envFile", inputs=True)

VSCODE_SETTINGS = replace(VSCODE, server_keys=("mcp.servers",))
"""The older place of servers in VS Code."""

INTELLIJ = replace(VSCODE, header_keys=("headers", "requestInit.headers"))
"""The Copilot plugin for JetBrains."""

WINDSURF = Dialect(
    url_keys=("serverUrl", "url"),
    type_keys=("type", "transport"),
    syntax="windsurf",
    without_keys=("disabledTools",),
)
"""Windsurf and Devin, its new name."""

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
"""Files in the common format of other clients."""

CLINE = Dialect(
    untyped_url="sse",
    scalars_as_text=False,
    type_keys=("type", "transportType"),
    nested="transport",
    syntax="env",
    call_timeouts={"timeout": SECOND},
)

LM_STUDIO = Dialect(syntax="", cwd_at="file")

ROO = Dialect(
    untyped_url=None,
    scalars_as_text=False,
    syntax="roo",
    call_timeouts={"timeout": SECOND},
    without_keys=("disabledTools",),
)

KIRO = Dialect(
    syntax="braces", expanded=frozenset({"env", "headers"}), without_keys=("disabledTools",)
)

JUNIE = Dialect(syntax="")  # Also for Air.

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

QWEN = replace(GEMINI, url_transports={"httpUrl": "http", "url": "sse"}, syntax="qwen")
"""Qwen Code infers the transport of a `url`; it reads `type` in `.mcp.json` only."""

OPENCODE = Dialect(
    server_keys=("mcp.servers", "mcp"),
    scalars_as_text=False,
    env_keys=("environment",),
    command_list=True,
    syntax="opencode",
    call_timeouts={"timeout": MILLISECOND},
)

KILO = replace(OPENCODE, server_keys=("mcp",))
"""Kilo Code from version 7; older files use `ROO`."""

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

AMP = Dialect(
    server_keys=("amp.mcpServers",),
    flat_keys=True,
    syntax="braces",
    call_timeouts={},
    only_keys=("includeTools",),
)

CRUSH = Dialect(
    server_keys=("mcp",),
    untyped_url=None,
    scalars_as_text=False,
    syntax="posix",
    call_timeouts={},
    start_timeouts={"timeout": SECOND},
    only_keys=("enabled_tools",),
    without_keys=("disabled_tools",),
)

DROID = Dialect(
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
    syntax="braces",
    expanded=frozenset({"env", "headers"}),
    start_timeouts={"connectTimeout": MILLISECOND},
    only_keys=("enabledTools",),
    without_keys=("disabledTools",),
)

KIMI = Dialect(
    scalars_as_text=False,
    type_keys=("transport",),
    syntax="",
    call_timeouts={"toolTimeoutMs": MILLISECOND},
    start_timeouts={"startupTimeoutMs": MILLISECOND},
    only_keys=("enabledTools",),
    without_keys=("disabledTools",),
    bearer_env="bearerTokenEnvVar",
)

TRAE = Dialect(syntax="cursor")

VIBE = Dialect(
    server_keys=("mcp_servers",),
    listed=True,
    scalars_as_text=False,
    header_keys=("headers", "auth.headers"),
    type_keys=("transport",),
    command_list=True,
    command_words=True,
    syntax="",
    call_timeouts={"tool_timeout_sec": SECOND},
    start_timeouts={"startup_timeout_sec": SECOND},
    without_keys=("disabled_tools",),
    bearer_env="api_key_env",
)

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        dict.fromkeys(
            key
            for each in list(globals().values())
            if isinstance(each, Dialect)
            for key in getattr(each, name)
        )
    )
    for name in ("server_keys", "command_keys", "url_keys", "env_keys", "header_keys", "type_keys")
}
"""All clients' spellings, by attribute of `Dialect`."""
