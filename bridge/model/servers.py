"""Servers as the configurations define them, and tools as the servers describe them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bridge.model.names import Json, ProtocolMode, Share, Transport


@dataclass(frozen=True, kw_only=True)
class Source:
    """The file and the key of a server's definition."""

    client: str  # The client whose configuration it is, as shown to the user ("Claude Code").
    scope: str  # The client's scope ("user", "local", "project", "managed", ...).
    path: str
    key: str  # The dotted key in the file ("mcpServers.github").
    moved_from: str = ""  # The client's file, if `import` moved the entry into the bridge's.
    fields: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        place = f"{self.path} ({self.key})" if self.key else self.path
        return f"{place}, moved from {self.moved_from}" if self.moved_from else place


@dataclass(frozen=True, kw_only=True)
class OAuthHints:
    """A configuration's login settings for a remote server; every field may be empty."""

    client_id: str = ""  # The id of a registered client; without one the bridge registers itself.
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    callback_port: int | None = None  # The port of the loopback redirect; None for any free one.


@dataclass(frozen=True, kw_only=True)
class ToolFilter:
    """The tools of a server that its configuration admits."""

    only: frozenset[str] | None = None  # The names of the admitted tools; None for all.
    # The names of excluded tools, which `only` does not override.
    without: frozenset[str] = frozenset()

    def admits(self, tool: str) -> bool:
        return tool not in self.without and (self.only is None or tool in self.only)


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """The definition of one MCP server, with its variables expanded."""

    name: str
    transport: Transport
    source: Source
    # Out of the repr: arguments, addresses and headers carry secrets as often as `env` does.
    # `command`, `args`, `env`, `cwd`: for `stdio`. `env` holds only what the entry adds.
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    # `url`, `headers`: for `http` and `sse`.
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    # `start_timeout`, `call_timeout`: seconds; None for the bridge's default.
    start_timeout: float | None = None
    call_timeout: float | None = None
    tools: ToolFilter = field(default_factory=ToolFilter)
    oauth: OAuthHints | None = None  # The login settings; None if the configuration has none.
    # Other definitions of this server, for readers only.
    also: tuple[Source, ...] = field(default=(), compare=False)
    # How the definitions in `also` differ, for readers only.
    differences: tuple[str, ...] = field(default=(), compare=False)
    # The unexpanded text of the command, an argument (as "args[0]"), the directory or the address,
    # if a variable was expanded in it.
    templates: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The entry of a project's server as its file has it, as JSON; the user approves this text.
    # Empty for the user's own server.
    written: str = field(default="", repr=False, compare=False)
    # The command's path on the search path; no program may write it.
    executable: str = field(default="", repr=False, compare=False)
    # Inherited variables with directories that programs may write, and the values that the server
    # gets instead.
    changes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Whether it loads no code from the bridge's start directory.
    apart: bool = field(default=False, compare=False)

    @cached_property
    def definition(self) -> str:
        """The identity of this server: "sha256:" and 64 hexadecimal digits.

        It covers transport, command, arguments, working directory, address, and the names of
        variables and headers. It has no values of variables, so that a renewed secret or another
        project keeps the identity. It does not cover the server's name.
        """
        written = self.templates
        identity = [
            self.transport,
            written.get("command", self.command),
            [written.get(f"args[{index}]", text) for index, text in enumerate(self.args)],
            written.get("cwd", self.cwd),
            written.get("url", self.url),
            sorted(self.env),
            sorted(self.headers),
        ]
        text = json.dumps(identity).encode("utf-8", "surrogatepass")
        return f"sha256:{hashlib.sha256(text).hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of one server in `config.toml`.

    Attributes:
        protocol: The server's protocol: "legacy" begins with `initialize`, "modern" with
            `server/discover`; "auto" tries both.
        share: Which clients of a background bridge share its process: those with equal
            definition, environment, roots and working directory ("definition"), those in any
            working directory ("user"), or none ("client"). "auto" means "definition", and
            "client" for known servers that keep a state for their client.
    """

    protocol: ProtocolMode = "auto"
    share: Share = "auto"


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for users to compare."""
    return digest[: len("sha256:") + 12]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool of one server, as its server describes it."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    input_schema: Mapping[str, Json] = field(default_factory=dict)
    output_schema: Mapping[str, Json] | None = None
    annotations: Mapping[str, Json] = field(default_factory=dict)
    # Whether the server has a page that clients show with its results (MCP Apps).
    has_view: bool = False

    @property
    def says_it_reads(self) -> bool:
        return self.annotations.get("readOnlyHint") is True

    @property
    def wraps_result(self) -> bool:
        """Whether its structured results only wrap a value, as `{"result": 3}`."""
        schema = self.output_schema
        properties = schema.get("properties") if schema is not None else None
        return (
            schema is not None
            and isinstance(properties, Mapping)
            and properties.keys() == {"result"}
            and schema.get("required") == ["result"]
        )

    @property
    def result_schema(self) -> Mapping[str, Json] | None:
        """The schema of the value that a program gets for a call; None if undeclared."""
        schema = self.output_schema
        properties = schema.get("properties") if schema is not None else None
        if schema is None or not isinstance(properties, Mapping) or len(properties) != 1:
            return schema
        (inner,) = properties.values()
        if not self.wraps_result:
            # A program gets the text if the structure only repeats it.
            is_text = isinstance(inner, Mapping) and inner.get("type") == "string"
            return {"anyOf": [{"type": "string"}, schema]} if is_text else schema
        if not isinstance(inner, Mapping):
            return {}
        # The targets of its `$ref`s.
        return {**{key: schema[key] for key in ("$defs", "definitions") if key in schema}, **inner}
