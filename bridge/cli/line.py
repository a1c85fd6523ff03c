"""Defines a parsed command line; `app` parses one with typer."""

from __future__ import annotations

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
    command: Callable[..., Any] = getattr(import_module(f"bridge.cli.{module}"), function)
    return command
