"""Learns the shapes of tools' results, for tools that declare no output schema, and stores them.

A shape (`bridge.catalog.shapes`) belongs to one version of a tool: its name and the names of its
arguments. Errors teach nothing. Parsed texts teach a shape after three results of one shape, since
some tools send any file's text. Learning is in each call's path, so it is cheap.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import time
from typing import Annotated, Literal

import anyio
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from bridge.catalog import shapes
from bridge.catalog.entries import Observation
from bridge.catalog.shapes import MAX_DEPTH, NOTHING, Shape
from bridge.event_loop import LARGE
from bridge.guest.protocol.results import text_of
from bridge.inventory.inventory import AGE, listing_digest, read_stored
from bridge.model import Json, ServerSpec, Tool
from bridge.rpc.values import shape_value
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_SCHEMA_BYTES = 8 * 1024
"""Size of a shape as JSON. A larger shape loses its deepest levels."""

MAX_TOOLS = 300  # Most recently used records of a server, which may rename its tools often.

_KIND = "shapes"


@dataclass(frozen=True, kw_only=True)
class ShapeRecord:
    """The learned shape of one version of a tool, as it is stored."""

    name: Annotated[str, Field(alias="tool")]
    shape: Annotated[
        Shape,
        PlainValidator(shapes.from_schema),
        PlainSerializer(shapes.schema),
        Field(alias="returns"),
    ] = NOTHING
    # Number of levels within `MAX_SCHEMA_BYTES`; deeper levels are left out.
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] = MAX_DEPTH
    count: Annotated[int, Field(ge=0)] = 0  # Number of results.
    day: str = ""  # Date of the last result, as in "2026-11-20".
    several: bool = False  # Whether the tool has ever sent several texts.

    def with_shape(self, shape: Shape) -> ShapeRecord:
        """Return this record with `shape` merged into it, within the bounds."""
        depth, found = self.depth, shapes.merge_shapes(self.shape, shape)
        if depth < MAX_DEPTH:
            found = shapes.prune_shape(found, depth)
        while depth > 0 and len(json.dumps(shapes.schema(found))) > MAX_SCHEMA_BYTES:
            # A removed level stays out, or the shape would change after each call.
            depth -= 1
            found = shapes.prune_shape(found, depth)
        return replace(self, shape=found, depth=depth)


ShapeRecords = Mapping[str, ShapeRecord]  # Records by the version digest of a tool.
Loaded = Mapping[str, ShapeRecords]  # The stored records by server.


@dataclass(frozen=True, kw_only=True)
class _Document:
    """The stored document of a server. Documents of another format version `form` are ignored."""

    server: str
    tools: dict[str, ShapeRecord]
    form: Literal[1] = 1


_DOCUMENT = TypeAdapter(_Document)


def add_shapes(store: Store, news: Sequence[tuple[ServerSpec, ShapeRecords]]) -> bool:
    """Merge new records into the stored ones; return whether they could be written. Blocks.

    Several bridges may write. The counts are those of results that are not stored yet.
    """
    try:
        with store.writing() as kept:
            for spec, records in news:
                name = listing_digest(spec)
                found = _merge(_parse_document(kept.get(_KIND, "", name), spec), records)
                document = _Document(server=spec.name, tools=dict(sorted(found.items())))
                kept.put(_KIND, "", name, _DOCUMENT.dump_json(document, by_alias=True))
            kept.prune(_KIND, most=500, oldest=time() - AGE)
    except OSError as error:
        logger.debug("shapes of results cannot be stored: %s", error)
        return False
    return True


def _parse_document(data: bytes | None, spec: ServerSpec) -> dict[str, ShapeRecord]:
    if data is None:
        return {}
    try:
        found = _DOCUMENT.validate_json(data)
    except ValidationError as error:
        logger.debug("ignoring the stored shapes of %s: %s", spec.name, error)
        return {}
    # A document of another name would attribute its shapes to the wrong server.
    return found.tools if found.server == spec.name else {}


def _merge(stored: ShapeRecords, news: ShapeRecords) -> dict[str, ShapeRecord]:
    found = dict(stored)
    for key, new in news.items():
        old = found.get(key, ShapeRecord(name=new.name))
        found[key] = replace(
            replace(old, depth=min(old.depth, new.depth)).with_shape(new.shape),
            count=old.count + new.count,
            day=max(old.day, new.day),
            several=old.several or new.several,
        )
    newest = sorted(found.items(), key=lambda item: (item[1].day, item[0]), reverse=True)
    return dict(newest[:MAX_TOOLS])


FIRST_RESULTS = 16
"""Results of each tool that a bridge reads first. Most shapes are complete after three."""

SAMPLE_EVERY = 16
"""One in so many later results is read, so that a long loop is not slowed down."""


@dataclass(eq=False)
class _Tool:
    tool: Tool
    key: str
    record: ShapeRecord
    seen: int = 0
    unwritten: int = 0
    described: Observation | None = None
    # The shapes of the last parsed texts, which are alike.
    parsed: list[Shape] = field(default_factory=list)

    def learn(self, wire: Mapping[str, Json]) -> bool:
        self.seen += 1
        self.unwritten += 1
        several = bool(wire["parts"].get("several"))
        if several and not self.record.several:
            self.record = replace(self.record, several=True)
        elif self.seen > FIRST_RESULTS and self.seen % SAMPLE_EVERY:
            return False
        if (shape := self._new_shape(wire["parts"])) is None:
            return False
        found = self.record.with_shape(shape)
        if found.shape == self.record.shape:
            return False
        self.record = found
        self.described = None
        return True

    def _new_shape(self, parts: Mapping[str, Json]) -> Shape | None:
        """Return the shape that a result adds to the record; None for no change."""
        text, blocks = parts.get("text"), parts.get("content") or ()
        texts = [text, *(text_of(block) for block in blocks[: shapes.SAMPLED_ITEMS])]
        if any(text is not None and len(text) > LARGE for text in texts):
            return None
        if len(blocks) > shapes.SAMPLED_ITEMS:
            parts = {**parts, "content": blocks[: shapes.SAMPLED_ITEMS]}
        shape = shapes.shape_of(shape_value({"parts": parts}))
        if text is None or "key" in parts or self.record.several:
            return shape
        known = self.record.shape
        if known.fields is not None or known.items is not None:
            return shape
        if "string" in shape.plain:
            self.parsed.clear()
            return shape
        if shape == Shape(items=NOTHING):
            return None
        if self.parsed and shapes.outline(self.parsed[0]) != shapes.outline(shape):
            self.parsed.clear()
        self.parsed.append(shape)
        return shapes.merge_shapes(*self.parsed) if len(self.parsed) >= 3 else None


@dataclass(eq=False)
class _Server:
    spec: ServerSpec
    stored: ShapeRecords
    tools: dict[str, _Tool] = field(default_factory=dict)

    def tool(self, tool: Tool) -> _Tool | None:
        found = self.tools.get(tool.name)
        if found is not None and found.tool is tool:
            return found
        if found is None and len(self.tools) >= MAX_TOOLS:
            return None
        key = version_digest(tool)
        if found is None or found.key != key:
            record = self.stored.get(key) or ShapeRecord(name=tool.name)
            found = self.tools[tool.name] = _Tool(tool, key, record)
        found.tool = tool
        return found

    def news(self, day: str) -> dict[str, ShapeRecord]:
        """Return the unstored records; they count as stored now."""
        found: dict[str, ShapeRecord] = {}
        for tool in self.tools.values():
            if tool.unwritten:
                found[tool.key] = replace(tool.record, count=tool.unwritten, day=day)
                tool.unwritten = 0
        return found


class LearnedShapes:
    """Learns, returns and stores shapes. For one event loop; only `load` may run in a thread.

    Run `save_regularly` as a task and call `close` at the end, or nothing is stored. A delay of
    `save_seconds` makes one write of a program's many calls.
    """

    def __init__(self, store: Store, *, save_seconds: float = 5.0) -> None:
        self._store = store
        self._save_seconds = save_seconds
        self._servers: dict[str, _Server] = {}
        self._unsaved: list[tuple[ServerSpec, ShapeRecords]] = []
        self._changed = anyio.Event()
        self._writing = anyio.Lock()

    def load(self, specs: Iterable[ServerSpec]) -> Loaded:
        """Read the records of new or redefined servers. Blocks, so call it in a thread."""
        known = {name: server.spec for name, server in tuple(self._servers.items())}
        new = [spec for spec in specs if known.get(spec.name) != spec]
        loaded: dict[str, ShapeRecords] = {spec.name: {} for spec in new}
        for spec, data in read_stored(self._store, _KIND, new) if new else ():
            loaded[spec.name] = _parse_document(data, spec)
        return loaded

    def configure(self, specs: Iterable[ServerSpec], loaded: Loaded) -> None:
        before, self._servers = self._servers, {}
        for spec in specs:
            if (known := before.get(spec.name)) is not None and known.spec == spec:
                self._servers[spec.name] = before.pop(spec.name)
            elif spec.name in loaded:
                self._servers[spec.name] = _Server(spec, loaded[spec.name])
        for gone in before.values():
            self._put_back(gone.spec, gone.news(_today()))

    def learn(self, server: str, tool: Tool, wire: Mapping[str, Json]) -> bool:
        known = self._servers.get(server)
        if known is None or tool.output_schema is not None:
            return False
        found = known.tool(tool)
        if found is None or not found.learn(wire):
            return False
        self._changed.set()
        return True

    def sends_several(self, server: str, tool: Tool) -> bool:
        live = self._live(server, tool)
        record = live.record if live is not None else self._record(server, tool)
        return record is not None and record.several

    def has_any(self, server: str) -> bool:
        known = self._servers.get(server)
        return known is not None and bool(known.stored or known.tools)

    def current(self, server: str, tool: Tool) -> Observation | None:
        live = self._live(server, tool)
        if live is None:
            return self.initial(server, tool)
        if live.described is None and (live.record.count or live.seen):
            # Its count is that of the last change.
            live.described = _observation(live.record, live.seen)
        return live.described

    def initial(self, server: str, tool: Tool) -> Observation | None:
        """Return the shape of a tool's results as stored when this bridge started."""
        record = self._record(server, tool)
        return _observation(record, 0) if record is not None and record.count else None

    def _live(self, server: str, tool: Tool) -> _Tool | None:
        known = self._servers.get(server)
        live = known.tools.get(tool.name) if known is not None else None
        same = live is not None and (live.tool is tool or live.key == version_digest(tool))
        return live if same else None

    def _record(self, server: str, tool: Tool) -> ShapeRecord | None:
        known = self._servers.get(server)
        return known.stored.get(version_digest(tool)) if known and known.stored else None

    async def save_regularly(self) -> None:
        """Store new records, soon after they are learned, until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(self._save_seconds)
            self._changed = anyio.Event()
            await self.save()

    async def close(self) -> None:
        """Store the unstored records, even when cancelled; gives up after two seconds."""
        with anyio.move_on_after(2.0, shield=True):
            await self.save()

    async def save(self) -> None:
        async with self._writing:
            day = _today()
            news, self._unsaved = self._unsaved, []
            news += [(known.spec, known.news(day)) for known in self._servers.values()]
            news = [(spec, records) for spec, records in news if records]
            if not news:
                return
            if not await self._store.run(partial(add_shapes, self._store, news), abandon=True):
                for spec, records in news:
                    self._put_back(spec, records)

    def _put_back(self, spec: ServerSpec, records: ShapeRecords) -> None:
        if records and len(self._unsaved) < 100:
            self._unsaved.append((spec, records))


def version_digest(tool: Tool) -> str:
    """Return the key of a version of a tool: 32 hexadecimal digits."""
    properties = tool.input_schema.get("properties")
    names = sorted(properties) if isinstance(properties, Mapping) else []
    text = json.dumps([tool.name, names])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _observation(record: ShapeRecord, seen: int) -> Observation:
    return Observation(schema=shapes.shown(record.shape), count=record.count + seen)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
