"""Answers to questions that no person gave. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

AUTOMATIC_SECONDS = 0.15  # No person reads and answers a question in less.

HEADLESS_SECONDS = 2.0
"""The same for a client that is known to answer so without a terminal, on a busy machine."""


class Headless(NamedTuple):
    """A mode of a client in which it answers questions itself.

    Attributes:
        since: The version in which this was first seen.
        action: Its answer.
    """

    command: str
    since: tuple[int, ...]
    action: str


_HEADLESS: Mapping[str, Headless] = {
    "claude-code": Headless("claude -p", (2, 1), "cancel"),
    "codex-mcp-client": Headless("codex exec", (0, 169), "decline"),
    "copilot-cli": Headless("copilot -p", (1, 0), "decline"),
}
"""By the beginning of the client's name; docs/clients.md has the measurements."""


def answered_by(client: str, action: object, seconds: float) -> str:
    """Return what answered a question instead of a person; empty if that may have been a person.

    Args:
        client: Its name and version.
        seconds: Between question and answer.
    """
    name, _, version = client.partition(" ")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    mode = next((mode for each, mode in _HEADLESS.items() if name.startswith(each)), None)
    if mode is not None and numbers >= mode.since and action == mode.action:
        return f"`{mode.command}`" if seconds < HEADLESS_SECONDS else ""
    return f"the client {client}".rstrip() if seconds < AUTOMATIC_SECONDS else ""
