"""A server's list of tools: all its pages, and what a page is worth.

Owns paging, its bounds and the parsing of entries. An entry that makes no sense is left out with a
warning, so that one bad tool does not hide the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from bridge.model import Json, Tool

logger = logging.getLogger(__name__)

MAX_PAGES = 100
"""The SDK's own cap for such walks. Real servers need one page, the largest seen have four."""

MAX_TOOLS = 10_000
"""More than any client could use; a server that makes up tools for ever is stopped here."""

Page = Mapping[str, Json]


async def read_all_pages(server: str, fetch: Callable[[str | None], Awaitable[Page]]) -> list[Json]:
    """Return the entries of all pages.

    A server that repeats a cursor or never ends keeps what it has sent so far.
    """
    entries: list[Json] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await fetch(cursor)
        found = page.get("tools")
        entries.extend(found if isinstance(found, list) else ())
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return entries
        if cursor in seen or len(entries) >= MAX_TOOLS:
            break
        seen.add(cursor)
    logger.warning("server %r: its list of tools does not end; %d are used", server, len(entries))
    return entries


def parse_tools(server: str, entries: Iterable[Json]) -> tuple[Tool, ...]:
    """Turn entries into tools. Of several with one name the first wins; names stay as they are."""
    tools: dict[str, Tool] = {}
    for entry in entries:
        tool = _parse_tool(server, entry)
        if tool is None:
            logger.warning("server %r: an entry of its tool list is unusable and left out", server)
        elif tool.name in tools:
            logger.warning(
                "server %r: it lists %r more than once; the first wins", server, tool.name
            )
        else:
            tools[tool.name] = tool
    return tuple(tools.values())


def _parse_tool(server: str, entry: Json) -> Tool | None:
    if not isinstance(entry, Mapping) or not isinstance(name := entry.get("name"), str) or not name:
        return None
    description = entry.get("description")
    output = entry.get("outputSchema")
    title = entry.get("title")
    return Tool(
        server=server,
        name=name,
        title=title if isinstance(title, str) else "",
        description=description if isinstance(description, str) else "",
        input_schema=_mapping(entry.get("inputSchema")),
        output_schema=output if isinstance(output, Mapping) else None,
        annotations=_mapping(entry.get("annotations")),
    )


def _mapping(value: Any) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
