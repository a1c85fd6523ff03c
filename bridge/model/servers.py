"""Servers and their tools, as configurations and the servers themselves have them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bridge.model.names import Json, ProtocolMode, Transport


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a server's definition was found.

    Attributes:
        client: The client whose configuration it is, as shown to the user ("Claude Code").
        scope: Which of the client's scopes ("user", "local", "project", "managed", ...).
        path: The file, absolute.
        key: The place in the file, dotted ("mcpServers.github").
        moved_from: The client's file, if the entry was moved from there into one of the bridge's.
        fields: Names of the entry's fields, and of their members.
    """

    client: str
    scope: str
    path: str
    key: str
    moved_from: str = ""
    fields: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        place = f"{self.path} ({self.key})" if self.key else self.path
        return f"{place}, moved from {self.moved_from}" if self.moved_from else place


@dataclass(frozen=True, kw_only=True)
class OAuthHints:
    """A configuration's login settings for a remote server; every field may be empty.

    Attributes:
        client_id: Of a client registered beforehand; without one the bridge registers itself.
        client_secret: Of that client.
        scopes: To ask for; those that the server names if empty.
        callback_port: Of the loopback redirect; any free one if None.
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    callback_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class ToolFilter:
    """Which of a server's tools its configuration lets through.

    Attributes:
        only: Names of those that are; None for all.
        without: Names of those that are not, whatever `only` says.
    """

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def admits(self, tool: str) -> bool:
        """Whether a tool of this name is let through."""
        return tool not in self.without and (self.only is None or tool in self.only)


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One MCP server, ready to be connected to: variables expanded, dialect forgotten.

    Attributes:
        command, args, env, cwd: For `stdio`. `env` holds only what the entry adds.
        url, headers: For `http` and `sse`.
        start_timeout, call_timeout: Seconds; None leaves the bridge's default.
        tools: Which of its tools may be seen and called.
        oauth: How to log in to it; None if the configuration says nothing of that.
        also: Where else the same server was found; what differs there is in `differences`. Both
            are for people to read: a server is the same whatever they say.
        templates: Text of the command, an argument (as "args[0]"), the directory or the address as
            the file has it, where a variable was put in.
        written: For a server of a project, the entry as its file has it, as JSON: what a person
            approves. Empty for the user's own.
        executable: The command's path, if it was found on the search path; no program may write it.
        changes: Variables that it inherits with another value, since programs may write where they
            lead. Empty ones say nothing.
        apart: Whether it takes no code from the directory that the bridge was started in.
    """

    name: str
    transport: Transport
    source: Source
    # Out of the repr: arguments, addresses and headers carry secrets as often as `env` does.
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    start_timeout: float | None = None
    call_timeout: float | None = None
    tools: ToolFilter = field(default_factory=ToolFilter)
    oauth: OAuthHints | None = None
    also: tuple[Source, ...] = field(default=(), compare=False)
    differences: tuple[str, ...] = field(default=(), compare=False)
    templates: Mapping[str, str] = field(default_factory=dict, repr=False)
    written: str = field(default="", repr=False, compare=False)
    executable: str = field(default="", repr=False, compare=False)
    changes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    apart: bool = field(default=False, compare=False)

    @cached_property
    def definition(self) -> str:
        """The identity of this server: "sha256:" and 64 hexadecimal digits.

        It covers what is started or connected to: transport, command, arguments, working directory,
        address, and the names of variables and headers. Values of variables stay out, so that a
        renewed secret or another project makes no other server. Its own name stays out, too.
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
    """What `config.toml` sets of one server.

    Attributes:
        protocol: Which protocol the server is spoken to in: "legacy" begins with `initialize`,
            "modern" with `server/discover`; "auto" finds out.
    """

    protocol: ProtocolMode = "auto"


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for people to compare."""
    return digest[: len("sha256:") + 12]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool of one server, as its server describes it.

    Attributes:
        has_view: Whether the server has a page that clients show with its results (MCP Apps).
    """

    server: str
    name: str
    title: str = ""
    description: str = ""
    input_schema: Mapping[str, Json] = field(default_factory=dict)
    output_schema: Mapping[str, Json] | None = None
    annotations: Mapping[str, Json] = field(default_factory=dict)
    has_view: bool = False

    @property
    def says_it_reads(self) -> bool:
        """Whether its server says that it changes nothing."""
        return self.annotations.get("readOnlyHint") is True

    @property
    def wraps_result(self) -> bool:
        """Whether the structure only wraps a value, as Python's SDKs do: `{"result": 3}`."""
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
        """The schema of what programs get for a call, if the server declares one."""
        schema = self.output_schema
        properties = schema.get("properties") if schema is not None else None
        if schema is None or not isinstance(properties, Mapping) or len(properties) != 1:
            return schema
        (inner,) = properties.values()
        if not self.wraps_result:
            # A structure that repeats the text is that text.
            is_text = isinstance(inner, Mapping) and inner.get("type") == "string"
            return {"anyOf": [{"type": "string"}, schema]} if is_text else schema
        if not isinstance(inner, Mapping):
            return {}
        # What `$ref`s in it point to.
        return {**{key: schema[key] for key in ("$defs", "definitions") if key in schema}, **inner}
