"""What is known of every server's tools, and what is made of it, each thing once.

Owns the catalog's entries for as long as what they are made of stays the same, so that a run costs
what it uses and not what is configured. Whoever keeps something made from entries keeps the
`revision` with it. Asks no server: `bridge.servers.servers` does, and says here what it learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from bridge.catalog.entries import Recall, ServerEntry, tool_entries
from bridge.catalog.naming import server_aliases
from bridge.catalog.program.tables import SERVER_METHODS
from bridge.catalog.stubs import run_discovered, run_server, to_call
from bridge.gate.redaction import Redactor
from bridge.gate.result_redaction import clear_tools
from bridge.model import Json, Tool
from bridge.servers.learned_shapes import LearnedShapes


class ToolInventory:
    """Entries of all servers, made when first asked for.

    Attributes:
        aliases: Every server's name and alias.
        learnt: Another number whenever something is learnt of what tools return. It changes with
            the first calls of a tool; what shows it is best made when it is asked for.

    Args:
        observed: What tools were seen to return; without it nothing is learnt.
    """

    def __init__(
        self, observed: LearnedShapes | None = None, redactor: Redactor | None = None
    ) -> None:
        self.learnt = 0
        self._redactor = redactor or Redactor()
        self._observed = observed
        self._revision = 0
        self._listeners: list[Callable[[], None]] = []
        self.aliases: Mapping[str, str] = {}
        self._descriptions: Mapping[str, str] = {}
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._cleared: dict[str, tuple[Tool, ...]] = {}
        self._entries: dict[str, ServerEntry] = {}
        self._places: Mapping[str, int] = {}
        self._by_name: dict[str, dict[str, Tool]] = {}
        self._all: tuple[ServerEntry, ...] | None = None
        self._settled: tuple[ServerEntry, ...] | None = None
        self._discovered: list[dict[str, Any]] | None = None
        self._stubs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    @property
    def revision(self) -> int:
        """Another number whenever there are other servers or tools."""
        return self._revision

    @revision.setter
    def revision(self, revision: int) -> None:
        self._revision = revision
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        """Have `listener` called after every change of `revision`, as long as this is open.

        It is called in the middle of the change: it may take note, and look later.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def reset(self, descriptions: Mapping[str, str], tools: Mapping[str, tuple[Tool, ...]]) -> None:
        """Take other servers, and what is known of their tools; aliases depend on the whole set."""
        self.revision += 1
        self.aliases = server_aliases(tuple(descriptions))
        clear = self._redactor.text
        self._descriptions = {name: clear(text) for name, text in descriptions.items()}
        self._places = {name: place for place, name in enumerate(descriptions)}
        self._tools = dict(tools)
        self._cleared.clear()
        self._entries.clear()
        self._stubs.clear()
        self._by_name.clear()
        self._all = self._settled = self._discovered = None

    def introduce(self, name: str, about: str) -> None:
        """Take what a server says of itself, in case the configuration says nothing of it."""
        if not about or self._descriptions.get(name) != "":
            return
        self._descriptions = {**self._descriptions, name: self._redactor.text(about)}
        self.revision += 1
        self._settled = self._discovered = None
        self._drop(name)

    def tools(self, name: str) -> tuple[Tool, ...] | None:
        """Return a server's tools as far as it was ever asked for them."""
        found = self._cleared.get(name)
        if found is None and name in self._tools:
            found = self._cleared[name] = clear_tools(self._tools[name], self._redactor)
        return found

    def clear_again(self) -> None:
        """Take out of what is known what has turned out to be secret since."""
        clear = self._redactor.text
        descriptions = {name: clear(text) for name, text in self._descriptions.items()}
        before, self._cleared = self._cleared, {}
        if descriptions == self._descriptions and all(
            self.tools(name) == tools for name, tools in before.items()
        ):
            # A token that is renewed every hour has nothing to do with what models are told.
            return
        self._descriptions = descriptions
        self.revision += 1
        self._entries.clear()
        self._stubs.clear()
        self._by_name.clear()
        self._all = self._settled = self._discovered = None

    def learn(self, name: str, tools: tuple[Tool, ...]) -> bool:
        """Take a server's tools; return whether that is news."""
        before = self._tools.get(name)
        if before is tools:
            return False
        # Even if they are the same: the next comparison is then one of identity.
        self._tools[name] = tools
        if before == tools:
            if name in self._cleared and self._cleared[name] is before:
                self._cleared[name] = tools
            return False
        self._cleared.pop(name, None)
        self.revision += 1
        self._by_name.pop(name, None)
        self._settled = None
        self._drop(name)
        return True

    def tool(self, name: str, tool: str) -> Tool | None:
        """Return one tool of a server, by its own name, as far as the server was ever asked."""
        tools = self._by_name.get(name)
        if tools is None:
            tools = self._by_name[name] = {one.name: one for one in self.tools(name) or ()}
        return tools.get(tool)

    def wraps_result(self, name: str, tool: str) -> bool:
        """Return whether a tool is known to put what is no object into one."""
        found = self.tool(name, tool)
        return found is not None and found.wraps_result

    def observe(self, name: str, tool: str, wire: Mapping[str, Json]) -> None:
        """Learn from what a call has returned, where the tool does not declare it.

        Args:
            wire: As `bridge.rpc.values.wire_value` gives it.
        """
        if self._observed is None:
            return
        found = self.tool(name, tool)
        if found is not None and self._observed.learn(name, found, wire):
            self.learnt += 1
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._entries.pop(name, None)
        self._stubs.pop(name, None)
        self._all = None

    def place(self, name: str) -> int:
        """Return where in the configuration's order a server stands."""
        return self._places[name]

    def entry(self, name: str) -> ServerEntry:
        """Return one server's entry.

        Raises:
            KeyError: There is none of that name.
        """
        found = self._entries.get(name)
        if found is None:
            recall = None if self._observed is None else partial(self._observed.now, name)
            found = self._entries[name] = self._entry(name, recall)
        return found

    def _entry(self, name: str, recall: Recall | None) -> ServerEntry:
        if self._observed is None or not self._observed.knows(name):
            recall = None
        return ServerEntry(
            name=name,
            alias=self.aliases[name],
            description=self._descriptions[name],
            tools=tool_entries(self.tools(name) or (), recall),
            known=name in self._tools,
        )

    def entries(self, *, loaded: Collection[str] = ()) -> tuple[ServerEntry, ...]:
        """Return the entries of all servers, in the order of the configuration."""
        if self._all is None:
            self._all = tuple(map(self.entry, self._descriptions))
        if not loaded:
            return self._all
        return tuple(
            replace(entry, loaded=True) if entry.name in loaded else entry for entry in self._all
        )

    def settled(self) -> tuple[ServerEntry, ...]:
        """Return all entries with what was seen before this bridge began, and nothing since.

        For texts that stand in a model's context from the start, such as the description of
        `run_python`: they must not change with every first call of a tool, for the model would pay
        for its whole conversation again. Depends on `revision` alone.
        """
        observed = self._observed
        if observed is None:
            return self.entries()
        if self._settled is None:
            self._settled = tuple(
                self._entry(name, partial(observed.at_first, name))
                if observed.knows(name)
                else self.entry(name)
                for name in self._descriptions
            )
        return self._settled

    def discovered(self, loaded: Collection[str]) -> list[dict[str, Any]]:
        """Return `Run.discovered`."""
        if self._discovered is None:
            bare = (
                ServerEntry(name=name, alias=self.aliases[name], description=description)
                for name, description in self._descriptions.items()
            )
            self._discovered = run_discovered(tuple(bare))
        if not loaded:
            return self._discovered
        return [
            {**line, "loaded": True} if line["name"] in loaded else line
            for line in self._discovered
        ]

    def stubs(self, name: str, used: frozenset[str] | None) -> dict[str, Any]:
        """Return one server's part of `Run.servers`.

        Args:
            used: What the program takes of it by name, of which it then gets what calling takes;
                None for all that it has. If something is not a tool, all are there: what is said
                of it then names the nearest.
        """
        found = self._stubs.get(name)
        if found is None:
            whole = run_server(self.entry(name))
            called = {tool["alias"]: to_call(tool) for tool in whole["tools"]}
            found = self._stubs[name] = (whole, called)
        whole, tools = found
        if used is None or "list_tools" in used or not tools.keys() | SERVER_METHODS >= used:
            return whole
        return {**whole, "tools": [tools[alias] for alias in sorted(used & tools.keys())]}
