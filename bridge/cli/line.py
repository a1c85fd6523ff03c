"""What a command line asks for, and how one that serves is read.

A client's configuration starts the bridge each time with the same few words, which are read here:
to import typer takes longer than all else that happens before the first answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from bridge.settings import FLAGS

PROGRAM = "mcp-code-bridge"

SERVE = "serve:serve"

_OF_NO_COMMAND = ("-h", "--help", "--version", "--install-completion", "--show-completion")


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One use of a command.

    Attributes:
        handler: What does it, as "module:function" of this package.
        arguments: The command's own.
        flags: The settings' that were given, by name.
    """

    handler: str
    arguments: SimpleNamespace = field(default_factory=SimpleNamespace)
    flags: Mapping[str, str] = field(default_factory=dict)


def with_default(words: Sequence[str]) -> list[str]:
    """Put `serve` ahead when no command is given, so that flags alone work."""
    if words and (not words[0].startswith("-") or words[0] in _OF_NO_COMMAND):
        return list(words)
    return ["serve", *words]


def simple_invocation(words: Sequence[str]) -> Invocation | None:
    """Return what a command line asks for, if that needs no typer: to serve, without a mistake."""
    if "_MCP_CODE_BRIDGE_COMPLETE" in os.environ:  # set by a shell that completes words
        return None
    command, *rest = with_default(words)
    if command != "serve":
        return None
    given: dict[str, str] = {}
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in {*FLAGS, "http"} or not (equals or rest):
            return None
        given[name] = value if equals else rest.pop(0)
    http = given.pop("http", None)
    return Invocation(
        handler=SERVE, arguments=SimpleNamespace(http=http, no_token=False), flags=given
    )
