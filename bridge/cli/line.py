"""A command line that was read, and the short way to read one that serves.

A client's configuration starts the bridge each time with the same few words. `simple_invocation`
reads those without typer, whose import takes longer than the rest of the start.
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

_OWN_FLAGS = ("--http", "--no-token")


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One use of a command: its function, as "module:function", its arguments and its settings."""

    handler: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)


def with_default(words: Sequence[str]) -> list[str]:
    """Return the words with the command that they mean.

    No command, or flags of `serve` alone, mean `serve`. `help COMMAND` means `COMMAND --help`.
    """
    first = words[0].partition("=")[0] if words else ""
    if not words or first in {*_OWN_FLAGS, *map(flag_of, FLAGS)}:
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
    return Invocation(handler=SERVE, arguments={"http": http, "no_token": False}, flags=given)
