"""The formats of clients' configuration files, as data. `clients.py` lists the files.

A new client needs a `Dialect`, with at most one new field, and rows in `clients.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from bridge.model import Transport

Platform = Literal["linux", "darwin", "win32"]

Format = Literal["json", "json with comments", "jsonc", "toml", "yaml", "by suffix"]
"""`jsonc` allows comments and trailing commas, `json with comments` only comments. `by suffix` is
TOML for files named `.toml`, else JSON.
"""

Syntax = Literal[
    "claude",
    "vscode",
    "cursor",
    "shell",
    "qwen",
    "posix",
    "opencode",
    "windsurf",
    "env",
    "roo",
    "braces",
    "secrets",
    "",
]
"""The syntax of variables, which `variables.py` defines. Empty: no variables."""

PLATFORMS: tuple[Platform, ...] = ("linux", "darwin", "win32")

ALL_FIELDS = frozenset({"command", "args", "env", "cwd", "url", "headers", "oauth"})

SECOND, MILLISECOND = 1.0, 0.001


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The format of servers in one client's files."""

    # Dotted keys of tables of servers; all that are present count.
    server_keys: tuple[str, ...] = ("mcpServers",)
    # Values of `type` and their transports.
    transports: Mapping[str, Transport] = field(default_factory=lambda: KNOWN_TRANSPORTS)
    # Transport of a `url` without `type`; None skips the entry.
    untyped_url: Transport | None = "http"
    # Whether `args`, `env` and `headers` may have numbers and booleans. Claude Code refuses them.
    scalars_as_text: bool = True
    # `url_keys`, `header_keys`, `env_keys`, `command_keys`, `type_keys`: spellings of a field; the
    # first present counts. A dotted one is a field of an inner object.
    url_keys: tuple[str, ...] = ("url",)
    header_keys: tuple[str, ...] = ("headers",)
    env_keys: tuple[str, ...] = ("env",)
    command_keys: tuple[str, ...] = ("command",)
    type_keys: tuple[str, ...] = ("type",)
    # Spellings of `url` that imply a transport.
    url_transports: Mapping[str, Transport] = field(default_factory=dict)
    per_project: bool = False  # Whether the server keys are below `projects.<directory>`.
    bare_server: bool = False  # Whether a file may be one entry, named after the file.
    # Whether a file without server keys deserves a warning. False for files with other settings.
    servers_expected: bool = False
    # Whether the servers are a list of entries with a `name` rather than an object.
    listed: bool = False
    nested: str = ""  # The field whose object has `type`, `command`, `url` and others.
    flat_keys: bool = False  # Whether dots in the server keys are part of the keys.
    command_words: bool = False  # Whether `command` is split into words like a shell does.
    # `command_list`, `command_object`: whether `command` may be a list with the arguments, or an
    # object with `path`, `args` and `env`.
    command_list: bool = False
    command_object: bool = False
    # Values of a field that mark servers only the client can start.
    foreign: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Fields with this meaning if the entry has no command and no url.
    foreign_fields: frozenset[str] = frozenset()
    syntax: Syntax = "claude"
    expanded: frozenset[str] = ALL_FIELDS  # The fields with variables.
    # `call_timeouts`, `start_timeouts`: fields, strongest first, and their unit in seconds.
    call_timeouts: Mapping[str, float] = field(
        default_factory=lambda: {"tool_timeout_sec": SECOND, "timeout": MILLISECOND}
    )
    start_timeouts: Mapping[str, float] = field(
        default_factory=lambda: {"startup_timeout_sec": SECOND}
    )
    # `only_key`, `without_key`: the fields that list the allowed and the denied tools.
    only_key: str = ""
    without_key: str = ""
    empty_only: bool = True  # Whether an empty list of allowed tools allows none rather than all.
    env_file: str = ""  # The field that names a file with further variables.
    env_names: str = ""  # The field that lists inherited variables.
    # `bearer_env`, `env_headers`, `api_key`: fields that name the variable with a bearer token, map
    # headers to variables, or contain the token.
    bearer_env: str = ""
    env_headers: str = ""
    api_key: str = ""
    inputs: bool = False  # Whether the file describes `${input:ID}` in `inputs`.
    # Dotted keys of the lists of enabled and of disabled servers.
    gates: tuple[str, str] | None = None
    elsewhere: str = ""  # The files with the client's servers if this file has none.
    # The base of a relative `cwd`: the file's directory or the workspace.
    cwd_at: Literal["file", "workspace"] = "workspace"


@dataclass(frozen=True, kw_only=True)
class Location:
    """One file, or pattern of files, with a client's servers."""

    id: str  # The source's name in `MCP_BRIDGE_SOURCES`; empty for a file that is always read.
    client: str
    scope: str
    # A path with `{places}`; see `locations.py`. A last part such as `*.json` means all such files
    # of the directory, sorted by name.
    template: str
    dialect: Dialect
    platforms: tuple[Platform, ...] = PLATFORMS
    format: Format = "json"
    approvable: bool = False  # Whether Claude Code's approval lists apply to its servers.
    unless: str = ""  # Another file next to it; if that exists, the client ignores this one.
    # The content: servers, one extension's manifest, or a list of plugins.
    holds: Literal["servers", "extension", "plugins"] = "servers"
    # Whether it is the bridge's file of moved entries, which count as approved.
    moved: bool = False

    @property
    def in_project(self) -> bool:
        """Whether it belongs to the working directory rather than to the user."""
        return self.scope == "project"


KNOWN_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "remote": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "sse": "sse",
}

_CLAUDE_TRANSPORTS = {
    name: KNOWN_TRANSPORTS[name] for name in ("stdio", "http", "streamable-http", "sse")
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
    without_key="disabledTools",
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
    without_key="disabledTools",
)

KIRO = Dialect(syntax="braces", expanded=frozenset({"env", "headers"}), without_key="disabledTools")

JUNIE = Dialect(syntax="")  # Also for Air.

ANTIGRAVITY = Dialect(url_keys=("serverUrl", "url"), syntax="", without_key="disabledTools")

CODEX = Dialect(
    server_keys=("mcp_servers",),
    scalars_as_text=False,
    header_keys=("http_headers",),
    syntax="",
    call_timeouts={"tool_timeout_sec": SECOND},
    start_timeouts={"startup_timeout_sec": SECOND, "startup_timeout_ms": MILLISECOND},
    only_key="enabled_tools",
    without_key="disabled_tools",
    env_names="env_vars",
    bearer_env="bearer_token_env_var",
    env_headers="env_http_headers",
)

GEMINI = Dialect(
    scalars_as_text=False,
    url_keys=("httpUrl", "url"),
    url_transports={"httpUrl": "http"},
    syntax="shell",
    only_key="includeTools",
    without_key="excludeTools",
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
    only_key="available_tools",
    empty_only=False,
    env_names="env_keys",
    cwd_at="file",
)

AMAZON_Q = Dialect(
    scalars_as_text=False,
    syntax="env",
    expanded=frozenset({"env", "headers"}),
    without_key="disabledTools",
)

COPILOT = Dialect(syntax="shell", expanded=frozenset({"env", "headers"}), only_key="tools")

AMP = Dialect(
    server_keys=("amp.mcpServers",),
    flat_keys=True,
    syntax="braces",
    call_timeouts={},
    only_key="includeTools",
)

CRUSH = Dialect(
    server_keys=("mcp",),
    untyped_url=None,
    scalars_as_text=False,
    syntax="posix",
    call_timeouts={},
    start_timeouts={"timeout": SECOND},
    only_key="enabled_tools",
    without_key="disabled_tools",
)

DROID = Dialect(
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
    syntax="braces",
    expanded=frozenset({"env", "headers"}),
    start_timeouts={"connectTimeout": MILLISECOND},
    only_key="enabledTools",
    without_key="disabledTools",
)

KIMI = Dialect(
    scalars_as_text=False,
    type_keys=("transport",),
    syntax="",
    call_timeouts={"toolTimeoutMs": MILLISECOND},
    start_timeouts={"startupTimeoutMs": MILLISECOND},
    only_key="enabledTools",
    without_key="disabledTools",
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
    without_key="disabled_tools",
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
