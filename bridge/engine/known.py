"""What is known of every server's tools, and what is made of it, each thing once.

Owns the catalog's entries for as long as what they are made of stays the same, so that a run costs
what it uses and not what is configured. Whoever keeps something made from entries keeps the
`revision` with it. Asks no server: `bridge.engine.servers` does, and says here what it learnt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.naming import server_aliases
from bridge.catalog.stubs import run_discovered, run_server
from bridge.model import Tool


class Known:
    """Entries of all servers, made when first asked for.

    Attributes:
        revision: Another number whenever an entry would be another.
        aliases: Every server's name and alias.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.aliases: Mapping[str, str] = {}
        self._descriptions: Mapping[str, str] = {}
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._entries: dict[str, ServerEntry] = {}
        self._places: Mapping[str, int] = {}
        self._all: tuple[ServerEntry, ...] | None = None
        self._discovered: list[dict[str, Any]] | None = None
        self._stubs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def reset(self, descriptions: Mapping[str, str], tools: Mapping[str, tuple[Tool, ...]]) -> None:
        """Take other servers, and what is known of their tools; aliases depend on the whole set."""
        self.revision += 1
        self.aliases = server_aliases(tuple(descriptions))
        self._descriptions = dict(descriptions)
        self._places = {name: place for place, name in enumerate(descriptions)}
        self._tools = dict(tools)
        self._entries.clear()
        self._stubs.clear()
        self._all = self._discovered = None

    def tools(self, name: str) -> tuple[Tool, ...] | None:
        """Return a server's tools as far as it was ever asked for them."""
        return self._tools.get(name)

    def learn(self, name: str, tools: tuple[Tool, ...]) -> bool:
        """Take a server's tools; return whether that is news."""
        before = self._tools.get(name)
        if before is tools:
            return False
        # Even if they are the same: the next comparison is then one of identity.
        self._tools[name] = tools
        if before == tools:
            return False
        self.revision += 1
        self._entries.pop(name, None)
        self._stubs.pop(name, None)
        self._all = None
        return True

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
            found = self._entries[name] = ServerEntry(
                name=name,
                alias=self.aliases[name],
                description=self._descriptions[name],
                tools=tool_entries(self._tools.get(name, ())),
                known=name in self._tools,
            )
        return found

    def entries(self, *, loaded: Collection[str] = ()) -> tuple[ServerEntry, ...]:
        """Return the entries of all servers, in the order of the configuration."""
        if self._all is None:
            self._all = tuple(map(self.entry, self._descriptions))
        if not loaded:
            return self._all
        return tuple(
            replace(entry, loaded=True) if entry.name in loaded else entry for entry in self._all
        )

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
            used: What the program takes of it by name; None for all that it has. If something is
                not a tool, all are there: what is said of it then names the nearest.
        """
        found = self._stubs.get(name)
        if found is None:
            whole = run_server(self.entry(name))
            found = self._stubs[name] = (whole, {tool["alias"]: tool for tool in whole["tools"]})
        whole, tools = found
        if used is None or not tools.keys() >= used:
            return whole
        return {**whole, "tools": [tools[alias] for alias in sorted(used)]}
