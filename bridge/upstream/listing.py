"""Reads a server's lists of tools, resources and prompts: pages, limits and entries.

Protocol: pagination by `nextCursor`, `ttlMs` of 2026-07-28. An invalid entry is left out with a
warning, so that it does not hide the others; the SDK rejects the whole list.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
from mcp import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from bridge.guest.schema.names import nearest
from bridge.guest.schema.schemas import as_mapping
from bridge.model import Json, Tool

logger = logging.getLogger(__name__)

# The bounds here protect against a server that sends long lists or large entries.


MAX_TOOLS = 10_000
"""More than any client could use. Of a longer list of tools, resources or prompts these are used,
with a warning."""

MAX_NAME_CHARS = 1024  # Of a tool's name, which records, errors and questions have.

MAX_TEXT_CHARS = 50_000  # Of a description, which is cut to them. Real ones have a few thousand.

MAX_SCHEMA_BYTES = 512 * 1024
"""Bytes of one tool's schemas and annotations as JSON, for which stubs, checks and the index take
time. A larger input schema is replaced by one that allows anything."""

MAX_SCHEMAS_BYTES = 16 * 1024 * 1024  # Of all tools of one server.

MAX_URI_CHARS = 8_000  # Web servers accept as much.

MIN_CACHE_SECONDS = 2.0  # Between two requests for a list of tools, whatever its `ttlMs`.

Page = Mapping[str, Json]

Kind = Literal["resources", "templates", "prompts"]


ListMethod = Literal["resources/list", "resources/templates/list", "prompts/list"]


@dataclass(frozen=True)
class ListKind:
    """The protocol's names for a list of resources, resource templates or prompts."""

    capability: Literal["resources", "prompts"]
    method: ListMethod
    key: str
    words: str
    identity: str


LISTS: Mapping[Kind, ListKind] = {
    "resources": ListKind("resources", "resources/list", "resources", "resources", "uri"),
    "templates": ListKind(
        "resources",
        "resources/templates/list",
        "resourceTemplates",
        "resource templates",
        "uriTemplate",
    ),
    "prompts": ListKind("prompts", "prompts/list", "prompts", "prompts", "name"),
}


async def read_all_pages(
    server: str,
    fetch: Callable[[dict[str, Json], float], Awaitable[Page]],
    seconds: float,
    key: str = "tools",
) -> list[Json]:
    """Return the entries of all pages, within `seconds`; none if the server has no such method.

    If a server repeats a cursor or never ends, the entries so far are returned.
    """
    entries: list[Json] = []
    params: dict[str, Json] = {}
    seen: set[str] = set()
    deadline = anyio.current_time() + seconds
    # A server may send pages without end. Real servers need one page, and four at most.
    for _ in range(100):
        try:
            page = await fetch(params, max(0.0, deadline - anyio.current_time()))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return entries
        found = page.get(key)
        entries.extend(found if isinstance(found, list) else ())
        if len(entries) > MAX_TOOLS:
            text = "server %r: it lists more than %d %s; the first %d are used"
            logger.warning(text, server, MAX_TOOLS, key, MAX_TOOLS)
            return entries[:MAX_TOOLS]
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return entries
        if cursor in seen or len(cursor) > 64 * 1024:  # The next request would send it back.
            break
        seen.add(cursor)
        params = {"cursor": cursor}
    logger.warning("server %r: its list of %s does not end; %d are used", server, key, len(entries))
    return entries


def cache_seconds(page: Page, *, announced: bool) -> float:
    """Return for how many seconds a page of protocol 2026-07-28 may be cached, by its `ttlMs`.

    Most servers send none or 0. Then a list is cached until the server announces a change, or for
    `MIN_CACHE_SECONDS` if it announces no changes.
    """
    ttl = page.get("ttlMs")
    # False for NaN.
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0:
        return math.inf if announced else MIN_CACHE_SECONDS
    # At most a day, as in the SDK. Some integers are too large to divide.
    return max(min(ttl, 24 * 3600 * 1000) / 1000, MIN_CACHE_SECONDS)


def valid_name(entry: Json) -> str | None:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS else None


def reduce_page(page: Page) -> dict[str, Json]:
    """Return a page with only each tool's name, and its schema if that marks a header.

    The SDK processes the page on the event loop.
    """
    entries, brief = page.get("tools"), []
    for entry in entries[:MAX_TOOLS] if isinstance(entries, list) else ():
        if valid_name(entry) is None:
            continue
        schema = entry.get("inputSchema")
        data = json.dumps(schema)
        if '"x-mcp-header"' not in data:
            schema = {"type": "object"}
        elif len(data) > MAX_SCHEMA_BYTES:
            schema = {}
        brief.append({"name": entry["name"], "inputSchema": schema})
    return {**page, "tools": brief}


def parse_tools(server: str, entries: Sequence[Json]) -> tuple[Tool, ...]:
    """Return the tools of a list's entries; of several with one name the first is used."""
    tools: dict[str, Tool] = {}
    left = MAX_SCHEMAS_BYTES
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries[:MAX_TOOLS]:
        name = valid_name(entry)
        if name is None:
            name = str(entry.get("name") if isinstance(entry, Mapping) else entry)
            problems["left out: their names are missing or too long"].append(name)
        elif not is_for_models(entry):
            continue
        elif name in tools:
            problems["listed more than once, and the first is used"].append(name)
        else:
            tool = _parse_tool(server, name, entry)
            tools[name], size = _bound(tool, min(left, MAX_SCHEMA_BYTES))
            left -= size
            if tools[name] is not tool:
                problems["shown without a schema, which is too large"].append(name)
    for problem, names in problems.items():
        shown = ", ".join(f"{name:.100}" for name in dict.fromkeys(names[:3]))
        text = "server %r: of its list of tools %d are %s: %r%s"
        logger.warning(text, server, len(names), problem, shown, ", ..." if names[3:] else "")
    return tuple(tools.values())


def is_for_models(entry: Json) -> bool:
    """Return whether models, not only the server's own view (MCP Apps), may call a tool."""
    visibility = _ui(entry).get("visibility")
    return not isinstance(visibility, list) or "model" in visibility


def _ui(entry: Json) -> Mapping[str, Json]:
    return as_mapping(as_mapping(as_mapping(entry).get("_meta")).get("ui"))


def _parse_tool(server: str, name: str, entry: Mapping[str, Json]) -> Tool:
    description = entry.get("description")
    output = entry.get("outputSchema")
    title = entry.get("title")
    return Tool(
        server=server,
        name=name,
        title=title[:1_000] if isinstance(title, str) else "",
        description=description[:MAX_TEXT_CHARS] if isinstance(description, str) else "",
        input_schema=as_mapping(entry.get("inputSchema")),
        output_schema=output if isinstance(output, Mapping) else None,
        annotations=as_mapping(entry.get("annotations")),
        has_view="resourceUri" in _ui(entry),
    )


def _bound(tool: Tool, most: int) -> tuple[Tool, int]:
    """Return a tool without too large schemas, and the size of the remaining ones in bytes."""
    size = 0
    empty: Mapping[str, Any] = {"input_schema": {"type": "object"}, "output_schema": None}
    for field, instead in {**empty, "annotations": {}}.items():
        own = len(json.dumps(getattr(tool, field)))
        if size + own > most:
            tool = replace(tool, **{field: instead})
        else:
            size += own
    return tool, size


def parse_offers(server: str, kind: Kind, entries: Sequence[Json]) -> tuple[dict[str, Json], ...]:
    """Return each entry's public fields; of several with one identity the first is used."""
    identity = LISTS[kind].identity
    found: dict[str, dict[str, Json]] = {}
    unusable = 0
    for entry in entries[:MAX_TOOLS]:
        own = entry.get(identity) if isinstance(entry, Mapping) else None
        if not isinstance(own, str) or not 0 < len(own) <= MAX_URI_CHARS:
            unusable += 1
        elif own not in found:
            found[own] = _offer(entry, identity)
    if unusable:
        logger.warning("server %r: %d of its %s are unusable", server, unusable, LISTS[kind].words)
    return tuple(found.values())


def _offer(entry: Mapping[str, Json], identity: str) -> dict[str, Json]:
    offer: dict[str, Json] = {identity: entry[identity]}
    for key in ("name", "title", "description", "mimeType"):
        text = entry.get(key)
        if isinstance(text, str) and text:
            offer.setdefault(key, text[:MAX_TEXT_CHARS])
    size = entry.get("size")
    if isinstance(size, int) and not isinstance(size, bool):
        offer["size"] = size
    arguments = entry.get("arguments")
    if isinstance(arguments, list):
        offer["arguments"] = [
            {
                "name": argument["name"][:MAX_TEXT_CHARS],
                "description": str(argument.get("description") or "")[:MAX_TEXT_CHARS],
                "required": argument.get("required") is True,
            }
            for argument in arguments
            if isinstance(argument, Mapping) and isinstance(argument.get("name"), str)
        ]
    return offer


def suggestion(kind: Kind, wanted: str, offers: Sequence[Mapping[str, Json]]) -> str:
    """Return a hint for a failed request: similar names, or the arguments of an existing prompt."""
    identity = LISTS[kind].identity
    found = next((offer for offer in offers if offer[identity] == wanted), None)
    if found is not None and kind != "prompts":
        return ""
    if found is not None:
        words = [
            f"{argument['name']}{' (required)' if argument['required'] else ''}"
            for argument in found.get("arguments", ())
        ]
        return f"Its arguments: {', '.join(words) or 'none'}."
    # Comparing takes time for each name and character.
    near = nearest(wanted[:200], [str(offer[identity])[:200] for offer in offers[:500]])
    return f"Did you mean {near!r}?" if near else ""
