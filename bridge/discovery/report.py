"""Skipped servers, proposed servers and configuration warnings, and how they show a file's text.

Values of `env` and `headers` never appear in a message: they often are secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.model import ServerSpec, Source


def shown(text: str) -> str:
    """Return a file's text for one line: unprintable characters escaped, cut to a bound."""
    cut = text if len(text) <= 80 else text[:80] + "..."
    return printable(cut)


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def dotted_key(*parts: str) -> str:
    """Return a place in a file, as `mcpServers.github.env.TOKEN`."""
    return ".".join(shown(part) for part in parts)


def where(path: str, key: str) -> str:
    return f"{printable(path)} ({key})" if key else printable(path)


@dataclass(frozen=True, kw_only=True)
class ConfigWarning:
    """A mistake in a configuration, for its owner to correct.

    Attributes:
        key: The place in the file, dotted; empty when the file as a whole is meant.
        unread: Whether the file exists and could not be read.
        own: Whether it is about a file or source named in the bridge's own settings.
        reported: Whether a `SkippedServer` reports the same reason.
    """

    path: str
    key: str
    reason: str
    unread: bool = field(default=False, compare=False)
    own: bool = field(default=False, compare=False)
    reported: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{where(self.path, self.key)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class SkippedServer:
    """A definition that is not used.

    Attributes:
        holds_name: Whether weaker definitions of the name are skipped, because it turns them off.
        foreign: Whether only its own client starts it, or none from here. The name stays free.
    """

    name: str
    source: Source
    reason: str
    holds_name: bool = False
    foreign: bool = False

    def __str__(self) -> str:
        place = where(self.source.path, self.source.key)
        return f"{shown(self.name) or '(no name)'} in {place}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A server's definition in a project's file, for the approval in one resolved directory."""

    directory: str
    path: str
    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class ProposedServer:
    """A project's definition (without text of files that it names) that needs an approval."""

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
