"""Learns the shapes of tools' results, for tools that declare no output schema.

A shape (`bridge.catalog.shapes`) belongs to one version of a tool: its name and the names of its
arguments. If one of them changes, the shape is learned again. Nothing is learned from errors, and
nothing from parsed texts before three results of one shape, since some tools send any file's text.

Learning happens in each call's path, so it is cheap. Shapes are loaded with the configuration and
stored (`bridge.inventory.shape_store`) in the background.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import anyio.to_thread

from bridge.catalog.entries import Observation
from bridge.catalog.shapes import NOTHING, SAMPLED_ITEMS, Shape, merged, outline, shape_of, shown
from bridge.guest.protocol.results import text_of
from bridge.inventory.shape_store import MAX_TOOLS, ShapeRecord, ShapeRecords, ShapeStore
from bridge.model import Json, ServerSpec, Tool
from bridge.offload import LARGE
from bridge.rpc.values import shape_value
from bridge.store import Store

logger = logging.getLogger(__name__)

FIRST_RESULTS = 16
"""Each tool's first results in a bridge that are all read; most shapes are complete after three."""

SAMPLE_EVERY = 16
"""Of later results one in this many is read, so that a long loop is not slowed down."""

Loaded = Mapping[str, tuple[ServerSpec, ShapeRecords]]
"""The records read from the store, by server, each with the definition they belong to."""


class _Tool:
    """One version of a tool that is being called."""

    def __init__(self, tool: Tool, key: str, record: ShapeRecord) -> None:
        self.tool = tool
        self.key = key
        self.record = record
        self.seen = 0
        self.unwritten = 0
        self.described: Observation | None = None
        # The shapes of the last parsed texts, which are alike.
        self.parsed: list[Shape] = []

    def learn(self, wire: Mapping[str, Json]) -> bool:
        """Learn from a result; return whether the shape changed."""
        self.seen += 1
        self.unwritten += 1
        several = bool(wire["parts"].get("several"))
        if several and not self.record.several:
            self.record = replace(self.record, several=True)
        elif self.seen > FIRST_RESULTS and self.seen % SAMPLE_EVERY:
            return False
        if (shape := self._new_shape(wire["parts"])) is None:
            return False
        if merged(self.record.shape, shape) == self.record.shape:
            return False
        found = self.record.with_shape(shape)
        if found.shape == self.record.shape:
            return False
        self.record = found
        self.described = None
        return True

    def _new_shape(self, parts: Mapping[str, Json]) -> Shape | None:
        """Return what a result adds to the record; None for nothing."""
        text, blocks = parts.get("text"), parts.get("content") or ()
        texts = [text, *(text_of(block) for block in blocks[:SAMPLED_ITEMS])]
        if any(text is not None and len(text) > LARGE for text in texts):
            return None
        if len(blocks) > SAMPLED_ITEMS:
            parts = {**parts, "content": blocks[:SAMPLED_ITEMS]}
        shape = shape_of(shape_value({"parts": parts}))
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
        if self.parsed and outline(self.parsed[0]) != outline(shape):
            self.parsed.clear()
        self.parsed.append(shape)
        return merged(*self.parsed) if len(self.parsed) >= 3 else None

    def observation(self) -> Observation:
        """Return the current shape; its count is that of the last change."""
        if self.described is None:
            self.described = _observation(self.record, self.seen)
        return self.described


class _Server:
    """One server's stored records, and what was learned since."""

    def __init__(self, spec: ServerSpec, stored: ShapeRecords) -> None:
        self.spec = spec
        self.stored = stored
        self.tools: dict[str, _Tool] = {}

    def tool(self, tool: Tool) -> _Tool | None:
        """Return the tool's learner; None if there are too many."""
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
        """Return the records that are not stored yet, and mark them as stored."""
        found: dict[str, ShapeRecord] = {}
        for tool in self.tools.values():
            if tool.unwritten:
                found[tool.key] = replace(tool.record, count=tool.unwritten, day=day)
                tool.unwritten = 0
        return found


class LearnedShapes:
    """Learns, returns and stores shapes. For one event loop; only `load` may run in a thread.

    Run `save_regularly` as a task and call `close` at the end, or nothing is stored.

    Args:
        save_seconds: Delay before storing, so that a program's many calls cause one write.
    """

    def __init__(self, store: Store, *, save_seconds: float = 5.0) -> None:
        self._shape_store = ShapeStore(store)
        self._save_seconds = save_seconds
        self._servers: dict[str, _Server] = {}
        self._unsaved: list[tuple[ServerSpec, ShapeRecords]] = []
        self._changed = anyio.Event()
        self._writing = anyio.Lock()

    def load(self, specs: Iterable[ServerSpec]) -> Loaded:
        """Read the records of new or redefined servers. Blocks: call it in a thread."""
        known = dict(self._servers)
        new = [spec for spec in specs if spec.name not in known or known[spec.name].spec != spec]
        if not new:
            return {}
        found = self._shape_store.load(new)
        return {spec.name: (spec, found[spec.name]) for spec in new}

    def configure(self, specs: Iterable[ServerSpec], loaded: Loaded) -> None:
        """Set the configured servers and the records that `load` returned for them."""
        before, self._servers = self._servers, {}
        for spec in specs:
            known = before.get(spec.name)
            if known is not None and known.spec == spec:
                self._servers[spec.name] = before.pop(spec.name)
            elif spec.name in loaded and loaded[spec.name][0] == spec:
                self._servers[spec.name] = _Server(*loaded[spec.name])
        for gone in before.values():
            self._put_back(gone.spec, gone.news(_today()))

    def learn(self, server: str, tool: Tool, wire: Mapping[str, Json]) -> bool:
        """Learn from a tool's successful result; return whether its shape changed.

        Args:
            wire: The result, as `bridge.rpc.values.call_parts` returns it.
        """
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
        record = live.record if live is not None else self._stored(server, tool)
        return record is not None and record.several

    def has_any(self, server: str) -> bool:
        """Return whether any shape of a server's results is known."""
        known = self._servers.get(server)
        return known is not None and bool(known.stored or known.tools)

    def current(self, server: str, tool: Tool) -> Observation | None:
        """Return the shape of a tool's results as learned until now."""
        live = self._live(server, tool)
        if live is None:
            return self.initial(server, tool)
        return live.observation() if live.record.count or live.seen else None

    def initial(self, server: str, tool: Tool) -> Observation | None:
        """Return the shape of a tool's results as stored when this bridge started."""
        record = self._stored(server, tool)
        return _observation(record, 0) if record is not None and record.count else None

    def _live(self, server: str, tool: Tool) -> _Tool | None:
        known = self._servers.get(server)
        live = known.tools.get(tool.name) if known is not None else None
        same = live is not None and (live.tool is tool or live.key == version_digest(tool))
        return live if same else None

    def _stored(self, server: str, tool: Tool) -> ShapeRecord | None:
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
        """Store the rest, even when cancelled; gives up after two seconds."""
        with anyio.move_on_after(2.0, shield=True):
            await self.save()

    async def save(self) -> None:
        """Store the records that are not stored yet."""
        async with self._writing:
            day = _today()
            news, self._unsaved = self._unsaved, []
            news += [(known.spec, known.news(day)) for known in self._servers.values()]
            news = [(spec, records) for spec, records in news if records]
            if not news:
                return
            if not await anyio.to_thread.run_sync(
                self._shape_store.add, news, abandon_on_cancel=True
            ):
                for spec, records in news:
                    self._put_back(spec, records)

    def _put_back(self, spec: ServerSpec, records: ShapeRecords) -> None:
        if records and len(self._unsaved) < 100:
            self._unsaved.append((spec, records))


def version_digest(tool: Tool) -> str:
    """Return the key of a version of a tool: 32 hexadecimal digits.

    Some servers write their texts in another order at each start.
    """
    properties = tool.input_schema.get("properties")
    names = sorted(properties) if isinstance(properties, Mapping) else []
    text = json.dumps([tool.name, names])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _observation(record: ShapeRecord, seen: int) -> Observation:
    return Observation(schema=shown(record.shape), count=record.count + seen)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
