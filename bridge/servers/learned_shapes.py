"""What tools were seen to return.

Owns the learning of shapes (`bridge.catalog.shapes`) from results, and when what was learnt is
written down (`bridge.servers.shape_store`). A shape belongs to one version of a tool, which
is its name, its description and its input schema: one that was changed is learnt anew. Nothing is
learnt of tools that declare what they return, nor from errors.

Learning happens in the call's path and so costs next to nothing. It is read when the
configuration is, and written in the background.
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
from bridge.catalog.shapes import covers, shape_of, shown
from bridge.model import Json, ServerSpec, Tool
from bridge.servers.shape_store import MAX_TOOLS, Memories, Memory, ShapeFiles
from bridge.store import Store

logger = logging.getLogger(__name__)

CLOSE_LOOKS = 16
"""The first results of a tool in a bridge are all looked at; most shapes are complete after
three."""

SPARSE = 16
"""Of the later ones one in so many is looked at, so that learning costs a long loop nothing."""

SAVE_SECONDS = 5.0
"""Between learning something and writing it: a program's many calls are written once."""

CLOSE_SECONDS = 2.0
"""For writing what is left at the end."""

MAX_LEFT = 100
"""Servers that left the configuration before what was learnt of them was written."""

Loaded = Mapping[str, tuple[ServerSpec, Memories]]
"""By server: what was read of it."""


class _Tool:
    """One version of one tool, of which calls are being made."""

    def __init__(self, tool: Tool, key: str, memory: Memory) -> None:
        self.tool = tool
        self.key = key
        self.memory = memory
        self.seen = 0
        self.unwritten = 0
        self.described: Observation | None = None

    def learn(self, wire: Mapping[str, Json]) -> bool:
        """Take a result; return whether it tells anything new."""
        self.seen += 1
        self.unwritten += 1
        if self.seen > CLOSE_LOOKS and self.seen % SPARSE:
            return False
        if covers(self.memory.shape, wire):
            return False
        found = self.memory.with_shape(shape_of(wire))
        if found.shape == self.memory.shape:
            return False
        self.memory = found
        self.described = None
        return True

    def observation(self) -> Observation:
        """Return what is known now. The count is that of the last change."""
        if self.described is None:
            self.described = _observation(self.memory, self.seen)
        return self.described


class _Server:
    """What is known of one server: what was read, and what was learnt since."""

    def __init__(self, spec: ServerSpec, stored: Memories) -> None:
        self.spec = spec
        self.stored = stored
        self.tools: dict[str, _Tool] = {}

    def tool(self, tool: Tool) -> _Tool | None:
        """Return the tool to learn of; None if there are too many."""
        found = self.tools.get(tool.name)
        if found is not None and found.tool is tool:
            return found
        if found is None and len(self.tools) >= MAX_TOOLS:
            return None
        key = version_digest(tool)
        if found is None or found.key != key:
            memory = self.stored.get(key) or Memory(name=tool.name)
            found = self.tools[tool.name] = _Tool(tool, key, memory)
        found.tool = tool
        return found

    def news(self, day: str) -> dict[str, Memory]:
        """Return what no file has yet, which from now on counts as written."""
        found: dict[str, Memory] = {}
        for tool in self.tools.values():
            if tool.unwritten:
                found[tool.key] = replace(tool.memory, count=tool.unwritten, day=day)
                tool.unwritten = 0
        return found


class LearnedShapes:
    """Learns and recalls. Belongs to one event loop, but for `load`.

    Run `keep` as a task and call `close` at the end, or nothing is written.
    """

    def __init__(self, store: Store, *, save_seconds: float = SAVE_SECONDS) -> None:
        self._files = ShapeFiles(store)
        self._save_seconds = save_seconds
        self._servers: dict[str, _Server] = {}
        self._left: list[tuple[ServerSpec, Memories]] = []
        self._news = anyio.Event()
        self._writing = anyio.Lock()

    def load(self, specs: Iterable[ServerSpec]) -> Loaded:
        """Read what is remembered of servers that are not known yet. Blocks; for a thread."""
        known = dict(self._servers)
        new = [spec for spec in specs if spec.name not in known or known[spec.name].spec != spec]
        if not new:
            return {}
        found = self._files.load(new)
        return {spec.name: (spec, found[spec.name]) for spec in new}

    def take(self, specs: Iterable[ServerSpec], loaded: Loaded) -> None:
        """Take another configuration, and what was read for it."""
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
        """Take a successful result of a tool; return whether what is known of it has changed.

        Args:
            wire: As `bridge.rpc.values.wire_value` gives it.
        """
        known = self._servers.get(server)
        if known is None or tool.output_schema is not None:
            return False
        found = known.tool(tool)
        if found is None or not found.learn(wire):
            return False
        self._news.set()
        return True

    def knows(self, server: str) -> bool:
        """Whether anything at all was ever seen of a server's results."""
        known = self._servers.get(server)
        return known is not None and bool(known.stored or known.tools)

    def now(self, server: str, tool: Tool) -> Observation | None:
        """Return what is known of a tool's results at this moment."""
        known = self._servers.get(server)
        if known is None:
            return None
        live = known.tools.get(tool.name)
        if live is not None and (live.tool is tool or live.key == version_digest(tool)):
            return live.observation() if live.memory.count or live.seen else None
        return self.at_first(server, tool)

    def at_first(self, server: str, tool: Tool) -> Observation | None:
        """Return what was known of a tool's results when this bridge began."""
        known = self._servers.get(server)
        if known is None or not known.stored:
            return None
        memory = known.stored.get(version_digest(tool))
        return _observation(memory, 0) if memory is not None and memory.count else None

    async def keep(self) -> None:
        """Write what is learnt, now and then, for ever."""
        while True:
            await self._news.wait()
            await anyio.sleep(self._save_seconds)
            self._news = anyio.Event()
            await self.save()

    async def close(self) -> None:
        """Write what is left, even when cancelled; gives up after `CLOSE_SECONDS`."""
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await self.save()

    async def save(self) -> None:
        """Write what no file has yet."""
        async with self._writing:
            day = _today()
            news, self._left = self._left, []
            news += [(known.spec, known.news(day)) for known in self._servers.values()]
            news = [(spec, memories) for spec, memories in news if memories]
            if not news:
                return
            if not await anyio.to_thread.run_sync(self._files.add, news, abandon_on_cancel=True):
                for spec, memories in news:
                    self._put_back(spec, memories)

    def _put_back(self, spec: ServerSpec, memories: Memories) -> None:
        if memories and len(self._left) < MAX_LEFT:
            self._left.append((spec, memories))


def version_digest(tool: Tool) -> str:
    """Return what identifies a version of a tool: 32 hexadecimal digits."""
    identity = [tool.name, tool.description, tool.input_schema]
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _observation(memory: Memory, seen: int) -> Observation:
    return Observation(schema=shown(memory.shape), count=memory.count + seen)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
