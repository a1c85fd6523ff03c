"""Holds every server's tools, and caches the catalog entries and stubs made from them.

The store has each server's last list of tools, so that later bridges need not start the server.
A run pays only for the tools that it uses. Callers that cache data made from entries store the
`revision` with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Literal

from bridge.catalog.entries import (
    Recall,
    ServerEntry,
    run_server,
    server_aliases,
    to_call,
    tool_entries,
)
from bridge.catalog.program.symbols import SERVER_METHODS
from bridge.gate.privacy import clear_tools
from bridge.gate.redaction import Redactor
from bridge.model import MEBIBYTE, Json, ServerSpec, Tool
from bridge.rpc.values import call_parts
from bridge.store import Store, adapter

if TYPE_CHECKING:
    from bridge.inventory.learned_shapes import LearnedShapes

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * MEBIBYTE
"""Size of one listing, against a server's long list. Hundreds of large schemas take a tenth."""

AGE = 90 * 24 * 3600.0  # In seconds. A listing that was not renewed is of an unused server.

_KIND = "listing"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A server's list of tools."""

    server: str
    tools: tuple[Tool, ...]
    info: Mapping[str, str] = field(default_factory=dict)  # As in `ServerState.server_info`.
    listed_at: float = 0.0  # Seconds since the epoch.
    start_seconds: float | None = None  # Of start and list; None if it was already running.
    form: Literal[2] = 2  # Version of this format; others are ignored.

    @property
    def schema_bytes(self) -> int:
        size = 0
        for tool in self.tools:
            described: dict[str, Json] = {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.input_schema,
            }
            if tool.output_schema is not None:
                described["outputSchema"] = tool.output_schema
            text = json.dumps(described, ensure_ascii=False, separators=(",", ":"))
            size += len(text.encode("utf-8", "replace"))
        return size


def listing_digest(spec: ServerSpec) -> str:
    identity = [
        spec.name,
        spec.definition,
        None if spec.tools.only is None else sorted(spec.tools.only),
        sorted(spec.tools.without),
    ]
    return hashlib.sha256(json.dumps(identity).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_stored(
    store: Store, kind: str, specs: Iterable[ServerSpec]
) -> Iterator[tuple[ServerSpec, bytes]]:
    """Yield the servers with a stored document of a kind, each with that document."""
    named = {listing_digest(spec): spec for spec in specs}
    try:
        for name, data in store.documents(kind, named).items():
            yield named[name], data
    except OSError as error:
        logger.debug("stored documents (%s) cannot be read: %s", kind, error)


class ToolCache:
    """Reads and writes listings; logs and ignores failures."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.run = store.run

    def load(self, spec: ServerSpec) -> Listing | None:
        return self.load_all([spec]).get(spec.name)

    def load_all(self, specs: Iterable[ServerSpec]) -> dict[str, Listing]:
        listings: dict[str, Listing] = {}
        for spec, data in read_stored(self._store, _KIND, specs):
            try:
                listing = adapter(Listing).validate_json(data)
            except ValueError as error:
                logger.debug("ignoring the stored tools of %s: %s", spec.name, error)
                continue
            # A listing of another name would attribute its tools to the wrong server.
            if {listing.server, *(tool.server for tool in listing.tools)} == {spec.name}:
                listings[spec.name] = listing
        return listings

    def save(self, spec: ServerSpec, listing: Listing) -> None:
        data = adapter(Listing).dump_json(listing)
        if len(data) > MAX_BYTES:
            return
        try:
            with self._store.writing() as kept:
                kept.put(_KIND, "", listing_digest(spec), data)
                kept.prune(_KIND, most=500, oldest=time() - AGE)
        except OSError as error:
            logger.debug("the tools of %s cannot be stored: %s", spec.name, error)


class ToolInventory:
    """The tools of all servers; entries are made when first requested."""

    def __init__(
        self, shapes: LearnedShapes | None = None, redactor: Redactor | None = None
    ) -> None:
        self.revision = self.shape_revision = 0
        self._redactor = redactor or Redactor()
        self._shapes = shapes
        self._listeners: list[Callable[[], None]] = []
        self.aliases: Mapping[str, str] = {}
        self._descriptions: Mapping[str, str] = {}
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._redacted: dict[str, tuple[Tool, ...]] = {}
        self._entries: dict[str, ServerEntry] = {}
        self._by_name: dict[str, dict[str, Tool]] = {}
        self._all: tuple[ServerEntry, ...] | None = None
        self._initial: tuple[ServerEntry, ...] | None = None
        self._changing: set[str] = set()
        self._stubs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def _revise(self) -> None:
        self.revision += 1
        self._initial = None
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` at each change of `revision` while this context is open.

        The call comes in the middle of the change, so the listener may only record it.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def configure(self, specs: Iterable[ServerSpec], listings: Mapping[str, Listing]) -> None:
        self.reset(
            {spec.name: spec.description for spec in specs},
            {name: listing.tools for name, listing in listings.items()},
        )
        for name, listing in listings.items():
            self.describe(name, listing.info)

    def reset(self, descriptions: Mapping[str, str], tools: Mapping[str, tuple[Tool, ...]]) -> None:
        self.aliases = server_aliases(tuple(descriptions))
        clear = self._redactor.text
        self._descriptions = {name: clear(text) for name, text in descriptions.items()}
        self._tools = dict(tools)
        self._changing.clear()
        self._redacted.clear()
        self._drop()
        self._revise()

    def describe(self, name: str, info: Mapping[str, str]) -> None:
        """Set a server's own description (`server_info`), unless the configuration has one."""
        about = info.get("about", "")
        if info.get("changes") and name not in self._changing:
            self._changing.add(name)
            self._drop(name)
        if not about or self._descriptions.get(name) != "":
            return
        self._descriptions = {**self._descriptions, name: self._redactor.text(about)}
        self._drop(name)
        self._revise()

    def tools(self, name: str) -> tuple[Tool, ...] | None:
        """Return a server's redacted tools; None if it was never asked for them."""
        found = self._redacted.get(name)
        if found is None and name in self._tools:
            found = self._redacted[name] = clear_tools(self._tools[name], self._redactor)
        return found

    def redact_again(self) -> None:
        """Redact all texts again, after other values have become secret."""
        clear = self._redactor.text
        descriptions = {name: clear(text) for name, text in self._descriptions.items()}
        before, self._redacted = self._redacted, {}
        if descriptions == self._descriptions and all(
            self.tools(name) == tools for name, tools in before.items()
        ):
            # A renewed token must not change texts in which it does not occur.
            return
        self._descriptions = descriptions
        self._drop()
        self._revise()

    def update(self, name: str, tools: tuple[Tool, ...]) -> bool:
        before = self._tools.get(name)
        if before is tools:
            return False
        # Even if they are equal, so that the next comparison is one of identity.
        self._tools[name] = tools
        if before == tools:
            if name in self._redacted and self._redacted[name] is before:
                self._redacted[name] = tools
            return False
        self._redacted.pop(name, None)
        self._drop(name)
        self._revise()
        return True

    def tool(self, name: str, tool: str) -> Tool | None:
        tools = self._by_name.get(name)
        if tools is None:
            tools = self._by_name[name] = {one.name: one for one in self.tools(name) or ()}
        return tools.get(tool)

    def reader(self, name: str, tool: str) -> Callable[[Mapping[str, Json]], dict[str, Json]]:
        """Return a function that unwraps a tool's results, by its schema and earlier results."""
        found = self.tool(name, tool)
        if found is None:
            return call_parts
        several = self._shapes is not None and self._shapes.sends_several(name, found)
        return partial(call_parts, wraps=found.wraps_result, several=several)

    def learn_result(self, name: str, tool: str, wire: Mapping[str, Json]) -> None:
        """Learn the shape of a call's result, as `call_parts` returns it, if its tool has none."""
        if self._shapes is None:
            return
        found = self.tool(name, tool)
        if found is not None and self._shapes.learn(name, found, wire):
            self.shape_revision += 1
            self._drop(name)

    def _drop(self, name: str | None = None) -> None:
        """Drop what was made from a server's tools, or from those of all servers."""
        for made in (self._entries, self._stubs, self._by_name):
            for key in tuple(made) if name is None else (name,):
                made.pop(key, None)
        self._all = None

    def entry(self, name: str) -> ServerEntry:
        found = self._entries.get(name)
        if found is None:
            shapes, recall = self._shapes, None
            if shapes is not None and shapes.has_any(name):
                recall = partial(shapes.current, name)
            found = self._entries[name] = self._entry(name, recall)
        return found

    def _entry(self, name: str, recall: Recall | None) -> ServerEntry:
        return ServerEntry(
            name=name,
            alias=self.aliases[name],
            description=self._descriptions[name],
            tools=tool_entries(self.tools(name) or (), recall),
            known=name in self._tools,
            changing=name in self._changing,
        )

    def entries(self, *, loaded: Collection[str] = ()) -> tuple[ServerEntry, ...]:
        if self._all is None:
            self._all = tuple(map(self.entry, self._descriptions))
        if not loaded:
            return self._all
        return tuple(replace(e, loaded=True) if e.name in loaded else e for e in self._all)

    def initial_entries(self) -> tuple[ServerEntry, ...]:
        """Return all entries with only the shapes that were stored before this bridge started.

        If the description of `run_python` changed with every first call of a tool, clients would
        pay for their whole conversation again. Depends on `revision` alone.
        """
        shapes = self._shapes
        if self._initial is None:
            self._initial = tuple(
                self._entry(name, partial(shapes.initial, name))
                if shapes is not None and shapes.has_any(name)
                else self.entry(name)
                for name in self._descriptions
            )
        return self._initial

    def stubs(self, name: str, used: frozenset[str] | None) -> dict[str, Any]:
        """Return one server's part of `Run.servers`.

        A program gets only the tools that it uses, without documentation. If a name is unknown,
        it gets all tools, so that the guest's error can name the nearest.
        """
        found = self._stubs.get(name)
        if found is None:
            whole = run_server(self.entry(name))
            called = {tool["alias"]: to_call(tool) for tool in whole["tools"]}
            found = self._stubs[name] = (whole, called)
        whole, tools = found
        by_name = {"list_tools", "call_tool", "call_tool_raw"}
        if used is None or used & by_name or not tools.keys() | SERVER_METHODS >= used:
            return whole
        return {**whole, "tools": [tools[alias] for alias in sorted(used & tools.keys())]}
