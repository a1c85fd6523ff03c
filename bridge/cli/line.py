"""Defines a parsed command line, and parses one that serves without typer.

Clients start the bridge with a few fixed words. `simple_invocation` parses them, because typer's
import takes longer than the rest of the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bridge.settings import FLAGS

PROGRAM = "mcp-code-bridge"

SERVE = "serve:serve"


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A parsed command line: the function, as "module:function", its arguments, and settings."""

    handler: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)


def with_default(words: Sequence[str]) -> list[str]:
    """Complete a command line that has no command.

    No words, or flags alone, mean `serve`. `help COMMAND` means `COMMAND --help`.
    """
    first = words[0].partition("=")[0] if words else ""
    if not words or first in {"--http", "--no-token", *map(flag_of, FLAGS)}:
        return ["serve", *words]
    if first == "help" and words[1:2] != ["settings"]:
        return [*words[1:], "--help"]
    if words == ["version"]:
        return ["--version"]
    return list(words)


def flag_of(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def handler_of(name: str) -> Callable[..., Any]:
    """Return a command's function; its module may take a second to import."""
    module, _, function = name.partition(":")
    path = f"bridge.{module}" if "." in module else f"bridge.cli.{module}"
    command: Callable[..., Any] = getattr(import_module(path), function)
    return command


def simple_invocation(words: Sequence[str]) -> Invocation | None:
    """Parse a command line that serves; return None for others and for mistakes."""
    if "_MCP_CODE_BRIDGE_COMPLETE" in os.environ:  # Set by a shell that completes words.
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
    return Invocation(handler=SERVE, arguments={"http": http, "no_token": False}, flags=given)
