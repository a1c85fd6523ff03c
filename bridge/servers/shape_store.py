"""How the shapes of results are kept between bridges.

Owns their form, their bounds and the way that several bridges write them: what is written is what
is there, merged with what is new, one bridge at a time. There is one small document per definition
of a server. What cannot be read or written is as if it were not there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from bridge.catalog.shapes import MAX_DEPTH, NOTHING, Shape, from_schema, merged, pruned, schema
from bridge.model import ServerSpec
from bridge.servers.tool_cache import listing_digest
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

_KIND = "shapes"


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


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """How a memory is written."""

    tool: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    returns: Any
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)]
    count: Annotated[int, Field(ge=0, le=_MAX_COUNT)]
    day: Annotated[str, Field(pattern=r"^(\d{4}-\d\d-\d\d)?$")]

    def memory(self) -> Memory:
        """Return what it was written of."""
        empty = Memory(name=self.tool, depth=self.depth, count=self.count, day=self.day)
        return empty.with_shape(from_schema(self.returns))


@dataclass(frozen=True, kw_only=True)
class _Document:
    """What is kept of a server. One of another form is another version's."""

    server: str
    tools: Annotated[dict[str, _Kept], Field(max_length=MAX_TOOLS)]
    form: Literal[1] = 1


_DOCUMENT = TypeAdapter(_Document)


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
                    name = listing_digest(spec)
                    found = _joined(_loaded(kept.get(_KIND, "", name), spec), memories)
                    tools = {key: _kept(memory) for key, memory in sorted(found.items())}
                    data = _DOCUMENT.dump_json(_Document(server=spec.name, tools=tools))
                    kept.put(_KIND, "", name, data)
                kept.prune(_KIND, most=MAX_FILES)
        except OSError as error:
            logger.debug("what tools return is not kept: %s", error)
            return False
        return True


def _kept(memory: Memory) -> _Kept:
    return _Kept(
        tool=memory.name[:MAX_NAME_CHARS],
        returns=schema(memory.shape),
        depth=memory.depth,
        count=min(memory.count, _MAX_COUNT),
        day=memory.day,
    )


def _loaded(data: bytes | None, spec: ServerSpec) -> dict[str, Memory]:
    if data is None:
        return {}
    try:
        found = _DOCUMENT.validate_json(data)
    except ValidationError as error:
        logger.debug("ignoring what is remembered of %s: %s", spec.name, error)
        return {}
    # One made for another name would put its shapes under the wrong server.
    return {key: each.memory() for key, each in found.tools.items() if found.server == spec.name}


def _joined(stored: Memories, news: Memories) -> dict[str, Memory]:
    found = dict(stored)
    for key, new in news.items():
        old = found.get(key, Memory(name=new.name))
        both = replace(old, depth=min(old.depth, new.depth)).with_shape(new.shape)
        found[key] = replace(both, count=old.count + new.count, day=max(old.day, new.day))
    newest = sorted(found.items(), key=lambda item: (item[1].day, item[0]), reverse=True)
    return dict(newest[:MAX_TOOLS])
