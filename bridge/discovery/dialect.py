"""Types that describe clients' configuration files; `clients.py` has the rows.

To support another client, add a row there, and at most a field of `Dialect` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.model import Transport

Platform = Literal["linux", "darwin", "win32"]

Format = Literal["json", "json with comments", "jsonc", "toml", "yaml", "by suffix"]
"""`json with comments` allows no comma before a closing bracket, `jsonc` does. `by suffix`: TOML
when the file's name ends in `.toml`, else JSON."""

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
"""How variables are written; `variables.py` says what each name means. Empty: not at all."""

PLATFORMS: tuple[Platform, ...] = ("linux", "darwin", "win32")

ALL_FIELDS = frozenset({"command", "args", "env", "cwd", "url", "headers", "oauth"})

SECOND, MILLISECOND = 1.0, 0.001


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one client writes servers.

    Attributes:
        server_keys: Dotted keys of name-to-entry objects; all that are present count.
        transports: Values of `type` and the transport each means.
        untyped_url: What a `url` without `type` means; None means that the entry is skipped.
        scalars_as_text: Whether numbers and booleans stand for their text in `args`, `env` and
            `headers`. Claude Code refuses them.
        url_keys, header_keys, env_keys, command_keys, type_keys: Spellings of a field; the first
            present counts. A dotted one stands in an object of the entry.
        url_transports: Spellings of `url` that say the transport by themselves.
        per_project: Whether the server keys stand below `projects.<directory>`.
        bare_server: Whether a file may be one entry, named after the file.
        servers_expected: Whether a file without any server key deserves a warning. Not so for
            files that hold other settings too.
        listed: Whether the servers are a list of entries with a `name`, rather than an object.
        nested: The field whose object holds `type`, `command`, `url` and their like, if there is
            one.
        flat_keys: Whether the dots in the server keys are part of the keys.
        command_words: Whether `command` is split into words as a shell does it.
        command_list, command_object: Whether `command` may be a list with the arguments, or an
            object with `path`, `args` and `env`.
        foreign: Values of a field that mark what no other program can start.
        foreign_fields: Fields that mark the same when there is neither a command nor a url.
        syntax: How variables are written.
        expanded: The fields in which they are.
        call_timeouts, start_timeouts: Fields, the strongest first, and their unit in seconds.
        only_keys, without_keys: Lists of the tools that are let through, and of those that are
            not; all that are present count.
        empty_only: Whether an empty list of those let through means none, rather than all.
        env_file: The field that names a file with more variables.
        env_names: The field that lists variables to hand on, without their values.
        bearer_env, env_headers, api_key: Fields that name the variable with a bearer token, map
            headers to variables, or hold the token.
        inputs: Whether `${input:ID}` is known, and the file describes them in `inputs`.
        gates: Dotted places of the list of servers that alone are on, and of those that are off.
        elsewhere: The files in which the client keeps servers, if it reads none in this one.
        cwd_at: What a relative `cwd` starts from: the file's directory, or the workspace.
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
    """One file, or pattern of files, in which a client keeps servers.

    Attributes:
        id: The name of the source in `MCP_BRIDGE_SOURCES`; empty for what cannot be left out.
        template: A path with `{places}`; see `locations.py`. A last part such as `*.json` means
            every such file of that directory, by name.
        in_project: Whether it belongs to the working directory rather than to the user.
        approvable: Whether Claude Code's approval lists speak about its servers.
        unless: A file next to it; where that exists, the client does not read this one.
        holds: Servers of the user's choice, those of one extension, or a list of plugins.
        moved: Whether it is the bridge's file of entries that the user moved out of the client's;
            they count as approved.
    """

    id: str
    client: str
    scope: str
    template: str
    dialect: Dialect
    platforms: tuple[Platform, ...] = PLATFORMS
    format: Format = "json"
    in_project: bool = False
    approvable: bool = False
    unless: str = ""
    holds: Literal["servers", "extension", "plugins"] = "servers"
    moved: bool = False


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
"""Every spelling that any client uses: none of them means one thing here and another there."""
