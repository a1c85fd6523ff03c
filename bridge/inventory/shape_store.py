"""Stores the learned shapes of results, so that later bridges know them.

Holds one small document per server definition, with a record for each version of a tool. Writing
merges new records into the stored ones in one transaction, so several bridges may write. An
unreadable document counts as missing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from bridge.catalog.shapes import MAX_DEPTH, NOTHING, Shape, from_schema, merged, pruned, schema
from bridge.inventory.tool_cache import AGE, listing_digest
from bridge.model import ServerSpec
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_SCHEMA_BYTES = 8 * 1024
"""Of a shape as JSON. A server sends any result; of a large one the deepest levels are left out."""

MAX_TOOLS = 300  # Records of a server, which may rename its tools at will; the last used are kept.

_KIND = "shapes"


@dataclass(frozen=True, kw_only=True)
class ShapeRecord:
    """The learned shape of one version of a tool, as it is stored.

    Attributes:
        name: The tool's name, for people who read the store.
        shape: The shape of its results.
        depth: Levels that fit `MAX_SCHEMA_BYTES`; deeper ones are left out.
        count: Number of results.
        day: Date of the last result, as in "2026-11-20".
        several: Whether the tool has ever sent several texts.
    """

    name: Annotated[str, Field(alias="tool")]
    shape: Annotated[
        Shape, PlainValidator(from_schema), PlainSerializer(schema), Field(alias="returns")
    ] = NOTHING
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] = MAX_DEPTH
    count: Annotated[int, Field(ge=0)] = 0
    day: str = ""
    several: bool = False

    def with_shape(self, shape: Shape) -> ShapeRecord:
        """Return this record with `shape` merged in, within the bounds."""
        depth, found = self.depth, merged(self.shape, shape)
        if depth < MAX_DEPTH:
            found = pruned(found, depth)
        while depth > 0 and len(json.dumps(schema(found))) > MAX_SCHEMA_BYTES:
            # A level left out once stays out, or the shape would change after each call.
            depth -= 1
            found = pruned(found, depth)
        return replace(self, shape=found, depth=depth)


ShapeRecords = Mapping[str, ShapeRecord]  # Records by the version digest of a tool.


@dataclass(frozen=True, kw_only=True)
class _Document:
    """The stored document of a server. `form` is the version of the format; others are ignored."""

    server: str
    tools: dict[str, ShapeRecord]
    form: Literal[1] = 1


_DOCUMENT = TypeAdapter(_Document)


class ShapeStore:
    """Reads and writes records. Blocks: call it in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, specs: Iterable[ServerSpec]) -> dict[str, dict[str, ShapeRecord]]:
        named = {listing_digest(spec): spec for spec in specs}
        found: dict[str, bytes] = {}
        try:
            found = self._store.documents(_KIND, named)
        except OSError as error:
            logger.debug("stored shapes of results cannot be read: %s", error)
        return {spec.name: _loaded(found.get(name), spec) for name, spec in named.items()}

    def add(self, news: Sequence[tuple[ServerSpec, ShapeRecords]]) -> bool:
        """Merge new records into the stored ones; return whether they could be written.

        Args:
            news: Their counts are of the results that are not stored yet.
        """
        try:
            with self._store.writing() as kept:
                for spec, records in news:
                    name = listing_digest(spec)
                    found = _merged(_loaded(kept.get(_KIND, "", name), spec), records)
                    document = _Document(server=spec.name, tools=dict(sorted(found.items())))
                    data = _DOCUMENT.dump_json(document, by_alias=True)
                    kept.put(_KIND, "", name, data)
                kept.prune(_KIND, most=500, oldest=time() - AGE)
        except OSError as error:
            logger.debug("shapes of results cannot be stored: %s", error)
            return False
        return True


def _loaded(data: bytes | None, spec: ServerSpec) -> dict[str, ShapeRecord]:
    if data is None:
        return {}
    try:
        found = _DOCUMENT.validate_json(data)
    except ValidationError as error:
        logger.debug("ignoring the stored shapes of %s: %s", spec.name, error)
        return {}
    # A document of another name would attribute its shapes to the wrong server.
    return found.tools if found.server == spec.name else {}


def _merged(stored: ShapeRecords, news: ShapeRecords) -> dict[str, ShapeRecord]:
    found = dict(stored)
    for key, new in news.items():
        old = found.get(key, ShapeRecord(name=new.name))
        both = replace(old, depth=min(old.depth, new.depth)).with_shape(new.shape)
        found[key] = replace(
            both,
            count=old.count + new.count,
            day=max(old.day, new.day),
            several=old.several or new.several,
        )
    newest = sorted(found.items(), key=lambda item: (item[1].day, item[0]), reverse=True)
    return dict(newest[:MAX_TOOLS])
