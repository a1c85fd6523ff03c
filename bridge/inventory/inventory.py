"""Holds every server's tools, and caches the catalog entries and stubs made from them.

A run pays only for the tools that it uses. Callers that cache data made from entries store the
`revision` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bridge.catalog.entries import (
    Recall,
    ServerEntry,
    run_discovered,
    run_server,
    server_aliases,
    to_call,
    tool_entries,
)
from bridge.catalog.program.symbols import SERVER_METHODS
from bridge.gate.privacy import clear_tools
from bridge.gate.redaction import Redactor
from bridge.model import Json, ServerSpec, Tool
from bridge.rpc.values import call_parts

if TYPE_CHECKING:
    from bridge.inventory.learned_shapes import LearnedShapes
    from bridge.inventory.tool_cache import Listing


class ToolInventory:
    """The tools of all servers; entries are made when first requested."""

    def __init__(
        self, shapes: LearnedShapes | None = None, redactor: Redactor | None = None
    ) -> None:
        self.shape_revision = 0
        self._redactor = redactor or Redactor()
        self._shapes = shapes
        self._revision = 0
        self._listeners: list[Callable[[], None]] = []
        self.aliases: Mapping[str, str] = {}
        self._descriptions: Mapping[str, str] = {}
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._redacted: dict[str, tuple[Tool, ...]] = {}
        self._entries: dict[str, ServerEntry] = {}
        self._by_name: dict[str, dict[str, Tool]] = {}
        self._all: tuple[ServerEntry, ...] | None = None
        self._initial: tuple[ServerEntry, ...] | None = None
        self._discovered: list[dict[str, Any]] | None = None
        self._changing: set[str] = set()
        self._stubs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    @property
    def revision(self) -> int:
        return self._revision

    @revision.setter
    def revision(self, revision: int) -> None:
        self._revision = revision
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
        self.revision += 1
        self.aliases = server_aliases(tuple(descriptions))
        clear = self._redactor.text
        self._descriptions = {name: clear(text) for name, text in descriptions.items()}
        self._tools = dict(tools)
        self._changing.clear()
        self._redacted.clear()
        self._drop_all()

    def describe(self, name: str, info: Mapping[str, str]) -> None:
        """Set a server's own description (`server_info`), unless the configuration has one."""
        about = info.get("about", "")
        if info.get("changes") and name not in self._changing:
            self._changing.add(name)
            self._drop(name)
        if not about or self._descriptions.get(name) != "":
            return
        self._descriptions = {**self._descriptions, name: self._redactor.text(about)}
        self.revision += 1
        self._initial = self._discovered = None
        self._drop(name)

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
        self.revision += 1
        self._drop_all()

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
        self.revision += 1
        self._by_name.pop(name, None)
        self._initial = None
        self._drop(name)
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

    def _drop(self, name: str) -> None:
        self._entries.pop(name, None)
        self._stubs.pop(name, None)
        self._all = None

    def _drop_all(self) -> None:
        self._entries.clear()
        self._stubs.clear()
        self._by_name.clear()
        self._all = self._initial = self._discovered = None

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
        if shapes is None:
            return self.entries()
        if self._initial is None:
            self._initial = tuple(
                self._entry(name, partial(shapes.initial, name))
                if shapes.has_any(name)
                else self.entry(name)
                for name in self._descriptions
            )
        return self._initial

    def discovery_lines(self, loaded: Collection[str]) -> list[dict[str, Any]]:
        if self._discovered is None:
            bare = (
                ServerEntry(name=name, alias=self.aliases[name], description=description)
                for name, description in self._descriptions.items()
            )
            self._discovered = run_discovered(tuple(bare))
        lines = self._discovered
        return [{**line, "loaded": True} if line["name"] in loaded else line for line in lines]

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
