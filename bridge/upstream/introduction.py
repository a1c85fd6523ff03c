"""What a server says of itself when it is connected to: one line for people and models. Pure."""

from __future__ import annotations

from mcp import ClientSession

MAX_CHARS = 300
"""Kept of it, since it is repeated wherever servers are listed."""

_MAX_READ = 4_000
"""Looked at of a server's instructions, which may be a book."""


def introduction(client: ClientSession) -> str:
    """Return a line on what the server is for; empty if it says nothing of that.

    From its description, else its title, else the first paragraph of its instructions, which are
    written for a model that has the server's tools at hand.
    """
    info = client.server_info
    told = (
        info.description if info else None,
        info.title if info and _letters(info.title) != _letters(info.name) else None,
        _first_paragraph(client.instructions or ""),
    )
    return next((line for text in told if text and (line := _line(text))), "")


def _letters(text: str | None) -> str:
    """Return what a name says, however it is written: a title that is no more says nothing."""
    return "".join(filter(str.isalnum, (text or "")[:MAX_CHARS].casefold()))


def _first_paragraph(text: str) -> str:
    """Return the first paragraph that is not a heading, a rule or a fence."""
    for paragraph in text[:_MAX_READ].split("\n\n"):
        lines = (line for line in paragraph.splitlines() if line[:1] not in ("#", "=", "-", "`"))
        if found := " ".join(lines).strip():
            return found
    return ""


def _line(text: str) -> str:
    return " ".join(text[:_MAX_READ].split())[:MAX_CHARS]
