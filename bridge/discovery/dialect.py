"""Types that describe clients' configuration files. `clients.py` has the data.

A new client needs a row there, and at most one new field of `Dialect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The format of servers in one client's files.

    Attributes:
        server_keys: Dotted keys of tables of servers; all that are present count.
        transports: Values of `type` and their transports.
        untyped_url: Transport of a `url` without `type`; None skips the entry.
        scalars_as_text: Whether `args`, `env` and `headers` may have numbers and booleans.
            Claude Code refuses them.
        url_keys, header_keys, env_keys, command_keys, type_keys: Spellings of a field; the
            first present counts. A dotted one is a field of an inner object.
        url_transports: Spellings of `url` that imply a transport.
        per_project: Whether the server keys are below `projects.<directory>`.
        bare_server: Whether a file may be one entry, named after the file.
        servers_expected: Whether a file without server keys deserves a warning. False for files
            with other settings.
        listed: Whether the servers are a list of entries with a `name` rather than an object.
        nested: The field whose object has `type`, `command`, `url` and others; empty if there
            is none.
        flat_keys: Whether dots in the server keys are part of the keys.
        command_words: Whether `command` is split into words like a shell does.
        command_list, command_object: Whether `command` may be a list with the arguments, or an
            object with `path`, `args` and `env`.
        foreign: Values of a field that mark servers only the client can start.
        foreign_fields: Fields with this meaning if the entry has no command and no url.
        syntax: The syntax of variables.
        expanded: The fields with variables.
        call_timeouts, start_timeouts: Fields, strongest first, and their unit in seconds.
        only_keys, without_keys: Lists of allowed and of denied tools; all that are present
            count.
        empty_only: Whether an empty list of allowed tools allows none rather than all.
        env_file: The field that names a file with further variables.
        env_names: The field that lists inherited variables.
        bearer_env, env_headers, api_key: Fields that name the variable with a bearer token, map
            headers to variables, or contain the token.
        inputs: Whether the file describes `${input:ID}` in `inputs`.
        gates: Dotted keys of the lists of enabled and of disabled servers.
        elsewhere: The files with the client's servers if this file has none.
        cwd_at: The base of a relative `cwd`: the file's directory or the workspace.
    """

    server_keys: tuple[str, ...] = ("mcpServers",)
    transports: Mapping[str, Transport] = field(default_factory=lambda: KNOWN_TRANSPORTS)
    untyped_url: Transport | None = "http"
    scalars_as_text: bool = True
    url_keys: tuple[str, ...] = ("url",)
    header_keys: tuple[str, ...] = ("headers",)
    env_keys: tuple[str, ...] = ("env",)
    command_keys: tuple[str, ...] = ("command",)
    type_keys: tuple[str, ...] = ("type",)
    url_transports: Mapping[str, Transport] = field(default_factory=dict)
    per_project: bool = False
    bare_server: bool = False
    servers_expected: bool = False
    listed: bool = False
    nested: str = ""
    flat_keys: bool = False
    command_words: bool = False
    command_list: bool = False
    command_object: bool = False
    foreign: Mapping[str, frozenset[str]] = field(default_factory=dict)
    foreign_fields: frozenset[str] = frozenset()
    syntax: Syntax = "claude"
    expanded: frozenset[str] = ALL_FIELDS
    call_timeouts: Mapping[str, float] = field(
        default_factory=lambda: {"tool_timeout_sec": SECOND, "timeout": MILLISECOND}
    )
    start_timeouts: Mapping[str, float] = field(
        default_factory=lambda: {"startup_timeout_sec": SECOND}
    )
    only_keys: tuple[str, ...] = ()
    without_keys: tuple[str, ...] = ()
    empty_only: bool = True
    env_file: str = ""
    env_names: str = ""
    bearer_env: str = ""
    env_headers: str = ""
    api_key: str = ""
    inputs: bool = False
    gates: tuple[str, str] | None = None
    elsewhere: str = ""
    cwd_at: Literal["file", "workspace"] = "workspace"


@dataclass(frozen=True, kw_only=True)
class Location:
    """One file, or pattern of files, with a client's servers.

    Attributes:
        id: The source's name in `MCP_BRIDGE_SOURCES`; empty for a file that is always read.
        template: A path with `{places}`; see `locations.py`. A last part such as `*.json` means
            all such files of the directory, sorted by name.
        approvable: Whether Claude Code's approval lists apply to its servers.
        unless: Another file next to it; if that exists, the client ignores this one.
        holds: The content: servers, one extension's manifest, or a list of plugins.
        moved: Whether it is the bridge's file of moved entries, which count as approved.
    """

    id: str
    client: str
    scope: str
    template: str
    dialect: Dialect
    platforms: tuple[Platform, ...] = PLATFORMS
    format: Format = "json"
    approvable: bool = False
    unless: str = ""
    holds: Literal["servers", "extension", "plugins"] = "servers"
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
