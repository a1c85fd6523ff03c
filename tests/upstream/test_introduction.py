"""What a server says of itself, in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from mcp.types import Implementation

from bridge.upstream.server import MAX_CHARS, introduction


@dataclass
class Client:
    """A connection that has been greeted."""

    server_info: Implementation | None
    instructions: str | None = None


def line(instructions: str | None = None, **info: Any) -> str:
    """Return the introduction of a server with this information."""
    made: Any = Client(Implementation(name="s", version="1", **info), instructions)
    return introduction(made)


@pytest.mark.parametrize(
    ("instructions", "info", "told"),
    [
        ("Use it.", {"description": "Issues\nand pulls."}, "Issues and pulls."),
        ("# Heading\n\nUse it for\nissues.\n\nMore.", {"title": "S"}, "Use it for issues."),
        ("Audience: written for an LLM.", {"title": "Issue tracker"}, "Issue tracker"),
        (None, {"title": "s"}, ""),
        ("", {}, ""),
    ],
)
def test_the_description_comes_first_then_the_title_then_the_instructions(
    instructions: str | None, info: dict[str, str], told: str
) -> None:
    assert line(instructions, **info) == told


def test_a_book_is_not_repeated() -> None:
    assert len(line("word " * 1_000_000)) == MAX_CHARS
    assert line("#" * 1_000_000) == ""


def test_a_server_that_gives_no_information_has_none() -> None:
    nobody: Any = Client(None)
    assert introduction(nobody) == ""
