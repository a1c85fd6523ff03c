"""Answers `initialize` before the MCP SDK is imported, which takes most of a second.

Only a request that the SDK certainly accepts is answered here. The SDK's session then reads the
same bytes, and its own answer is dropped; tests compare the two. Other requests go to the SDK.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from bridge import __version__

NAME = "mcp-code-bridge"

TITLE = "MCP code bridge"

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Protocol versions of the handshake; the last is offered to clients of other versions."""

CAPABILITIES = {
    "logging": {},
    "resources": {"listChanged": True, "subscribe": True},
    "tools": {"listChanged": True},
}

_ROUTINE = {"sampling": 2, "elicitation": 2, "experimental": 2, "extensions": 2, "tasks": 50}
"""Capabilities that are nested objects, and to which depth."""

_INFO = {"name", "version", "title", "description", "websiteUrl"}


@dataclass(frozen=True)
class Greeting:
    """The bytes read from stdin before the SDK's session, and the answered `initialize`'s id."""

    read: bytes = b""
    answered: int | str | None = None


NO_GREETING = Greeting()


def greet(instructions: Callable[[], str]) -> Greeting:
    """Answer an `initialize` if it already waits on stdin as the first message."""
    if sys.stdin is None or sys.stdout is None or sys.stdin.isatty():
        return NO_GREETING
    text = instructions()
    try:
        if not select.select((0,), (), (), 0)[0]:
            return NO_GREETING
        read = os.read(0, 16 * 1024)
    except OSError:
        # The transport reads next and reports the error.
        return NO_GREETING
    request = plain_initialize(read.partition(b"\n")[0]) if b"\n" in read else None
    if request is None:
        return Greeting(read)
    number, version = request
    try:
        rest = answer(number, version, text).encode() + b"\n"
        while rest:
            rest = rest[os.write(1, rest) :]
    except (OSError, UnicodeEncodeError):
        return Greeting(read)
    return Greeting(read, number)


def answer(number: int | str, version: str, instructions: str) -> str:
    """Return the response to an `initialize` as the SDK writes it."""
    result = {
        "capabilities": CAPABILITIES,
        "protocolVersion": version if version in VERSIONS else VERSIONS[-1],
        "serverInfo": {"name": NAME, "title": TITLE, "version": __version__},
        "instructions": instructions,
    }
    message = {"jsonrpc": "2.0", "id": number, "result": result}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


def plain_initialize(line: bytes) -> tuple[int | str, str] | None:
    """Return the id and the protocol version of an `initialize` that the SDK certainly accepts."""
    # Parsers differ on escapes of half a character.
    if line.count(b"{") + line.count(b"[") > 50 or b"\\u" in line:
        return None
    try:
        message = json.loads(
            line.decode(),
            object_pairs_hook=_without_repeats,
            parse_float=_unusual,
            parse_constant=_unusual,
        )
    except ValueError:
        return None
    match message:
        case {
            "jsonrpc": "2.0",
            "id": int() | str() as number,
            "method": "initialize",
            "params": {
                "protocolVersion": str() as version,
                "capabilities": dict() as capabilities,
                "clientInfo": {"name": str(), "version": str(), **info},
                **others,
            },
            **more,
        } if not others and not more and not isinstance(number, bool):
            plain = info.keys() <= _INFO and all(isinstance(each, str) for each in info.values())
            roots = capabilities.pop("roots", {})
            routine = roots in ({}, {"listChanged": True}, {"listChanged": False}) and all(
                name in _ROUTINE and _is_object(each, _ROUTINE[name])
                for name, each in capabilities.items()
            )
            return (number, version) if plain and routine else None
    return None


def _is_object(value: Any, levels: int) -> bool:
    if levels == 0:
        return True
    return isinstance(value, dict) and all(_is_object(each, levels - 1) for each in value.values())


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        _unusual()
    return unique


def _unusual(*_: str) -> NoReturn:
    raise ValueError
