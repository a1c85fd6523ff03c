"""What is said of the servers: to the model, to programs, to people at a terminal.

Owns the link between what is known of the servers at this moment and the catalog's texts.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from bridge.catalog.docs import Detail, capabilities, server_docs, tool_description, tool_docs
from bridge.catalog.entries import ServerEntry
from bridge.catalog.search import ToolIndex
from bridge.engine.servers import Servers
from bridge.errors import UsageError
from bridge.model import Limits, Tool
from bridge.sandbox.limits import limits_for
from bridge.settings import Settings

MAX_LISTED = 50
"""Hits of a search at a terminal."""


class Guide:
    """The texts on a bridge's servers."""

    def __init__(self, servers: Servers, settings: Settings) -> None:
        self._servers = servers
        self._settings = settings
        self._indexed: tuple[tuple[Tool, ...], ToolIndex] | None = None

    def tool_description(self) -> str:
        """Return the description of `run_python`."""
        limits = limits_for(self._settings)
        return tool_description(
            self._servers.entries(), limits, max_timeout=self._settings.max_timeout
        )

    def capabilities(self, loaded: tuple[str, ...] = (), limits: Limits | None = None) -> str:
        """Return the guide to what a program can do."""
        return capabilities(
            self._servers.entries(loaded=loaded),
            limits=limits or limits_for(self._settings),
            max_timeout=self._settings.max_timeout,
        )

    def servers_json(self) -> str:
        """Return every server and its state, as JSON."""
        states = self._servers.pool.states()
        document: list[dict[str, Any]] = [
            {
                "name": spec.name,
                "alias": f"mcp_{self._servers.aliases[spec.name]}",
                "description": spec.description,
                "transport": spec.transport,
                "source": str(spec.source),
                "state": states[spec.name].state,
            }
            for spec in self._servers.discovery.servers
        ]
        document.extend(
            {"name": entry.name, "state": "skipped", "reason": entry.reason}
            for entry in self._servers.discovery.skipped
        )
        return json.dumps(document, ensure_ascii=False)

    async def tools_json(self, name: str) -> str:
        """Return the tools of one server with their schemas, as JSON.

        Raises:
            BridgeError: There is no such server, or it cannot be reached.
        """
        server = self._servers.resolve(name)
        await self._servers.load([server])
        return json.dumps(self.server_docs(server, "full"), ensure_ascii=False)

    def server_docs(self, server: str, detail: Detail) -> list[dict[str, Any]]:
        """Return the documentation of a server's tools, as far as they are known."""
        return server_docs(self._entry(server), detail)

    def tool_docs(self, server: str, tool: str, detail: Detail) -> dict[str, Any]:
        """Return the documentation of one tool, given by name or alias.

        Raises:
            UsageError: The server has no such tool; the text names the nearest.
        """
        entry = self._entry(server)
        for candidate in entry.tools:
            if tool in (candidate.tool.name, candidate.alias):
                return tool_docs(entry, candidate, detail)
        names = [candidate.tool.name for candidate in entry.tools]
        near = difflib.get_close_matches(tool, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        message = f"The server {server!r} has no tool {tool!r:.100}.{hint}"
        raise UsageError(message)

    def search(
        self, query: str, limit: int, detail: Detail, *, server: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the documentation of the tools that fit `query`, best first.

        Args:
            server: Look only among this server's tools.

        Raises:
            InvalidRequestError: There is no word in the query.
        """
        places = {
            (entry.name, tool.tool.name): (entry, tool)
            for entry in self._servers.entries()
            for tool in entry.tools
            if server in (None, entry.name)
        }
        tools = tuple(tool.tool for _, tool in places.values())
        return [
            tool_docs(*places[match.tool.server, match.tool.name], detail)
            for match in self._index(tools).search(query, limit=limit)
        ]

    def _index(self, tools: tuple[Tool, ...]) -> ToolIndex:
        """Return the index over `tools`; counting words takes longer than searching."""
        if self._indexed is None or self._indexed[0] != tools:
            self._indexed = (tools, ToolIndex(tools))
        return self._indexed[1]

    def tools(self, names: tuple[str, ...], query: str | None) -> list[dict[str, Any]]:
        """Return the tools of `names`, all of them or those that fit a query."""
        if not query:
            return [document for name in names for document in self.server_docs(name, "summary")]
        only = names[0] if len(names) == 1 else None
        return self.search(query, MAX_LISTED, "summary", server=only)

    def _entry(self, server: str) -> ServerEntry:
        return next(entry for entry in self._servers.entries() if entry.name == server)
