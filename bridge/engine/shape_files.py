"""How the shapes of results are kept between bridges.

Owns their form, their bounds and the way that several bridges write them: what is written is what
is there, merged with what is new, one bridge at a time. There is one small document per definition
of a server. What cannot be read or written is as if it were not there.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.catalog.shapes import MAX_DEPTH, NOTHING, Shape, from_schema, merged, pruned, schema
from bridge.engine.tool_cache import listing_digest
from bridge.model import Json, ServerSpec
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_SCHEMA_BYTES = 8 * 1024
"""Of one tool's shape as JSON. More would be no help to whoever reads it; its depths are left
out."""

MAX_TOOLS = 300
"""Of one server, versions counted apart; those seen last are kept."""

MAX_FILES = 500
"""Definitions change as versions in their arguments do, and the old ones stay here."""

MAX_NAME_CHARS = 200
"""Of a tool's name in a file, where it is for people."""

_MAX_COUNT = 10**12

_FORM = 1
"""Of the documents. Those of another number count as none."""

_KIND = "shapes"
_KEY = re.compile(r"[0-9a-f]{32}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered of one version of a tool.

    Attributes:
        name: The tool's, for people who look into the file.
        shape: Of its results.
        depth: What lies deeper is left out for being too much.
        count: Of results.
        day: When the last of them was seen, as in "2026-11-20".
    """

    name: str
    shape: Shape = NOTHING
    depth: int = MAX_DEPTH
    count: int = 0
    day: str = ""

    def with_shape(self, shape: Shape) -> Memory:
        """Return this with what `shape` adds, within the bounds."""
        depth, found = self.depth, merged(self.shape, shape)
        if depth < MAX_DEPTH:
            found = pruned(found, depth)
        while depth > 0 and len(json.dumps(schema(found))) > MAX_SCHEMA_BYTES:
            # Once it was too much it stays out, or the shape would be another after each call.
            depth -= 1
            found = pruned(found, depth)
        return replace(self, shape=found, depth=depth)


Memories = Mapping[str, Memory]
"""By version of a tool."""


class ShapeFiles:
    """Reads and writes what is remembered of servers. Blocks; for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, specs: Iterable[ServerSpec]) -> dict[str, dict[str, Memory]]:
        """Return what is remembered of servers' tools, by server."""
        named = {listing_digest(spec): spec for spec in specs}
        found: dict[str, bytes] = {}
        try:
            found = self._store.documents(_KIND, named)
        except OSError as error:
            logger.debug("what tools return was not read: %s", error)
        return {spec.name: _loaded(found.get(name), spec) for name, spec in named.items()}

    def add(self, news: Sequence[tuple[ServerSpec, Memories]]) -> bool:
        """Add to what is kept; return whether that could be done.

        Args:
            news: Their counts are of the results that are not kept yet.
        """
        try:
            with self._store.writing() as kept:
                for spec, memories in news:
                    found = _document(
                        spec.name,
                        _joined(_loaded(kept.get(_KIND, "", listing_digest(spec)), spec), memories),
                    )
                    data = json.dumps(found, ensure_ascii=True).encode()
                    kept.put(_KIND, "", listing_digest(spec), data)
                kept.prune(_KIND, most=MAX_FILES)
        except OSError as error:
            logger.debug("what tools return is not kept: %s", error)
            return False
        return True


def _loaded(data: bytes | None, spec: ServerSpec) -> dict[str, Memory]:
    try:
        return _memories(json.loads(data or b"{}"), spec.name)
    except (ValueError, RecursionError) as error:
        logger.debug("ignoring what is remembered of %s: %s", spec.name, error)
        return {}


def _joined(stored: Memories, news: Memories) -> dict[str, Memory]:
    found = dict(stored)
    for key, new in news.items():
        old = found.get(key, Memory(name=new.name))
        both = replace(old, depth=min(old.depth, new.depth)).with_shape(new.shape)
        found[key] = replace(both, count=old.count + new.count, day=max(old.day, new.day))
    newest = sorted(found.items(), key=lambda item: (item[1].day, item[0]), reverse=True)
    return dict(newest[:MAX_TOOLS])


def _document(server: str, memories: Memories) -> dict[str, Json]:
    return {
        "form": _FORM,
        "server": server,
        "tools": {
            key: {
                "tool": memory.name[:MAX_NAME_CHARS],
                "returns": schema(memory.shape),
                "depth": memory.depth,
                "count": memory.count,
                "day": memory.day,
            }
            for key, memory in sorted(memories.items())
        },
    }


def _memories(document: Json, server: str) -> dict[str, Memory]:
    if not isinstance(document, dict) or document.get("form") != _FORM:
        return {}
    tools = document.get("tools")
    # A file made for another name would put its shapes under the wrong server.
    if document.get("server") != server or not isinstance(tools, dict):
        return {}
    found: dict[str, Memory] = {}
    for key, entry in tools.items():
        if len(found) >= MAX_TOOLS:
            break
        if isinstance(entry, dict) and _KEY.fullmatch(key):
            found[key] = _memory(entry)
    return found


def _memory(entry: Mapping[str, Json]) -> Memory:
    name, count, day, depth = (entry.get(key) for key in ("tool", "count", "day", "depth"))
    empty = Memory(
        name=name[:MAX_NAME_CHARS] if isinstance(name, str) else "",
        depth=depth if isinstance(depth, int) and 0 <= depth <= MAX_DEPTH else MAX_DEPTH,
        count=count if isinstance(count, int) and 0 <= count <= _MAX_COUNT else 0,
        day=day if isinstance(day, str) and _DAY.fullmatch(day) else "",
    )
    return empty.with_shape(from_schema(entry.get("returns")))
