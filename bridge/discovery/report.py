"""Skipped servers, proposed servers and configuration warnings.

A message never contains values of `env` and `headers`, which are often secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.model import ServerSpec, Source


def shown(text: str) -> str:
    """Return a file's text for one line: unprintable characters escaped, at most 80 long."""
    cut = text if len(text) <= 80 else text[:80] + "..."
    return printable(cut)


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def dotted_key(*parts: str) -> str:
    """Return a place in a file, such as `mcpServers.github.env.TOKEN`."""
    return ".".join(shown(part) for part in parts)


def where(path: str, key: str) -> str:
    return f"{printable(path)} ({key})" if key else printable(path)


@dataclass(frozen=True, kw_only=True)
class ConfigWarning:
    """A mistake in a configuration, for its owner to correct."""

    path: str
    key: str  # The dotted place in the file; empty for the file as a whole.
    reason: str
    # Whether the file exists and could not be read.
    unread: bool = field(default=False, compare=False)
    # Whether it concerns a file or source that the bridge's settings name.
    own: bool = field(default=False, compare=False)
    # Whether a `SkippedServer` has the reason, too.
    reported: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{where(self.path, self.key)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class SkippedServer:
    """An unused definition."""

    name: str
    source: Source
    reason: str
    # Whether it turns a server off, so that weaker definitions are skipped, too.
    holds_name: bool = False
    # Whether only its own client, or no client, can start it. The name stays free.
    foreign: bool = False

    def __str__(self) -> str:
        place = where(self.source.path, self.source.key)
        return f"{shown(self.name) or '(no name)'} in {place}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The key of an approval: a server's definition in a project's file, for one real directory."""

    directory: str
    path: str
    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class ProposedServer:
    """A project's definition that needs approval. Files that it names are not read."""

    spec: ServerSpec
    definition: Definition
    reason: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def source(self) -> Source:
        return self.spec.source

    @property
    def remedy(self) -> str:
        return f"`mcp-code-bridge servers approve {shown(self.name)}` shows it and asks"

    def __str__(self) -> str:
        place = where(self.source.path, self.source.key)
        return f"{shown(self.name)} in {place}: {self.reason}; {self.remedy}"
