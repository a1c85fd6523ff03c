"""Returns the texts on servers and tools. `bridge.catalog` owns the wording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import anyio.to_thread

from bridge.catalog import docs
from bridge.catalog.docs import Detail, Offers
from bridge.catalog.entries import ServerEntry, server_stub
from bridge.catalog.search import GOOD_FIT, Match, ToolIndex
from bridge.errors import BridgeError, UsageError
from bridge.guest.schema.names import nearest
from bridge.inventory.configuration import waiting_line
from bridge.inventory.servers import Servers
from bridge.model import Json, Limits, Tool
from bridge.sandbox.backend import limits_for
from bridge.sandbox.probe import recall
from bridge.settings import Settings
from bridge.settings.state import time_zone

SKILLS_SERVER = "skills\0"
"""The server name of skills in the index, which no real server can have."""

BRIEF_TOKENS = 450  # Of the description for clients that defer all other tools.


class SkillDocs(Protocol):
    """The saved skills as a source of search results."""

    async def search_entries(self) -> tuple[Tool, ...]:
        """Return the skills as tools of `SKILLS_SERVER`."""

    def docs(self, name: str) -> dict[str, Json] | None:
        """Return the documentation of a skill; None if it was deleted."""


class GuestGuide:
    def __init__(
        self, servers: Servers, settings: Settings, skills: SkillDocs | None = None
    ) -> None:
        self._skills = skills
        self._servers = servers
        self._settings = settings
        self._described: tuple[ServerEntry, ...] | None = None
        self._described_revision = -1
        self._descriptions = {False: "", True: ""}  # By whether they are brief.
        self._index = ToolIndex()
        self._searching = anyio.Lock()

    async def tool_description(self, *, brief: bool = False) -> str:
        """Return the description of `run_python`; it changes only if it `is_outdated`.

        A `brief` one is for clients that load tools on demand.
        """
        revision = self._servers.inventory.revision
        if self._described_revision != revision:
            servers = self._servers.inventory.initial_entries()
            if self._described is None or docs.is_outdated(self._described, servers):
                describe = partial(
                    docs.tool_description,
                    servers,
                    limits_for(self._settings),
                    checked=self._settings.preflight == "check",
                    offers=self.offers(),
                )
                budget = self._settings.description_tokens
                self._descriptions = {
                    # In a thread: it may format hundreds of tools.
                    short: await anyio.to_thread.run_sync(partial(describe, tokens=tokens))
                    for short, tokens in ((False, budget), (True, min(budget, BRIEF_TOKENS)))
                }
                self._described = servers
            self._described_revision = revision
        return self._descriptions[brief]

    def instructions(self) -> str:
        waiting = waiting_line(self._servers.discovery.proposed)
        return docs.instructions(self._servers.inventory.initial_entries(), waiting)

    def offers(self, roots: Iterable[tuple[str, str]] = ()) -> Offers:
        settings = self._settings
        packages = [entry.text for entry in settings.dependencies.allow]
        if "*" in packages:
            packages = [
                "any package of " + ("the index" if settings.dependencies.index else "PyPI")
            ]
        contents = recall(settings)
        return Offers(
            packages=tuple(packages) if settings.packages_allowed else (),
            installed=contents.packages,
            python=contents.python,
            directories=settings.offered_directories,
            roots=docs.root_names(roots, map(str, settings.roots)),
            time_zone=time_zone(settings.environ),
            listed_only=settings.listed_servers_only,
        )

    def capabilities(
        self,
        loaded: tuple[str, ...] = (),
        limits: Limits | None = None,
        roots: tuple[tuple[str, str], ...] = (),
    ) -> str:
        """Return the guide to what a program can do; `roots` are as for `offers`."""
        limits = limits or limits_for(self._settings)
        offers = self.offers(roots)
        offers = offers if limits.directories else replace(offers, directories=())
        entries = self._servers.inventory.entries(loaded=loaded)
        text = docs.capabilities(entries, limits=limits, offers=offers)
        left_out = waiting_line(self._servers.discovery.proposed)
        return f"{text.rstrip()}\n\n{left_out}\n" if left_out else text

    def servers_json(self) -> str:
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
        document.extend(
            {
                "name": entry.name,
                "state": "proposed",
                "source": str(entry.source),
                "reason": entry.reason,
                "approve": f"mcp-code-bridge servers approve {entry.name}",
            }
            for entry in self._servers.discovery.proposed
        )
        return json.dumps(document, ensure_ascii=False)

    async def tools_json(self, name: str) -> str:
        documents = await self.server_docs(await self._load(name), "full")
        return json.dumps(documents, ensure_ascii=False)

    async def server_stub(self, name: str) -> str:
        entry = self._servers.inventory.entry(await self._load(name))
        # In a thread: hundreds of tools take a second.
        return await anyio.to_thread.run_sync(server_stub, entry)

    async def _load(self, name: str) -> str:
        server = self._servers.resolve(name)
        await self._servers.load([server])
        return server

    async def server_docs(self, server: str, detail: Detail) -> list[dict[str, Any]]:
        entry = self._servers.inventory.entry(server)
        # In a thread: a tool takes half a millisecond, or a hundred with large schemas.
        return await anyio.to_thread.run_sync(docs.server_docs, entry, detail)

    async def tool_docs(self, server: str, tool: str, detail: Detail) -> dict[str, Any]:
        entry = self._servers.inventory.entry(server)
        candidate = entry.find_tool(tool)
        if candidate is None:
            await self._servers.ask_again([server])
            entry = self._servers.inventory.entry(server)
            candidate = entry.find_tool(tool)
        if candidate is not None:
            return await anyio.to_thread.run_sync(docs.tool_docs, entry, candidate, detail)
        near = nearest(tool, [candidate.tool.name for candidate in entry.tools])
        hint = f" Did you mean {near!r}?" if near else ""
        raise UsageError(f"The server {server!r} has no tool {tool!r:.100}.{hint}")

    async def search_servers(
        self,
        names: Sequence[str],
        query: str,
        limit: int,
        detail: Detail,
        *,
        server: str | None = None,
        skills: bool = False,
    ) -> tuple[list[dict[str, Any]], dict[str, BridgeError]]:
        """Search after asking the servers whose tools are unknown; return their errors too.

        If no tool matches well, wait three times as long for slow servers.
        """
        search = partial(self.search, query, limit, detail, server=server, skills=skills)
        errors = await self._servers.load_unknown(names)
        found = await search()
        if not has_match(found) and self._servers.starting_servers(names):
            with anyio.move_on_after(2 * self._servers.straggler_seconds):
                await self._servers.wait_for_starts(names)
            errors = await self._servers.load_unknown(names)
            found = await search()
        return found, errors

    async def search(
        self,
        query: str,
        limit: int,
        detail: Detail,
        *,
        server: str | None = None,
        skills: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the documentation of the tools that match `query`, best first, each with a score.

        A tool of several servers is returned once, with the other servers' aliases as `also`. If
        no tool matches well, the three best are returned, each with `poor`.
        """
        inventory = self._servers.inventory

        def find() -> list[Match]:
            self._index.update(tools)
            return self._index.search(query, limit=limit, server=server)

        async with self._searching:
            tools = {name: inventory.tools(name) or () for name in self._servers.names()}
            if skills and self._skills is not None:
                tools[SKILLS_SERVER] = await self._skills.search_entries()
            matches = await anyio.to_thread.run_sync(find)
        poor = bool(matches) and matches[0].fit < GOOD_FIT
        documents: list[dict[str, Any]] = []
        returned: dict[tuple[str, str, str], dict[str, Any]] = {}
        for match in matches[: 3 if poor else None]:
            tool, name, score = match.tool, match.tool.server, round(match.score, 3)
            if name == SKILLS_SERVER and self._skills is not None:
                found = self._skills.docs(tool.name)
                if found is not None:
                    documents.append({**found, "score": score})
                continue
            if name not in inventory.aliases:
                # Removed from the configuration during the search.
                continue
            entry = inventory.entry(name)
            key = (tool.name, tool.description, json.dumps(tool.input_schema, sort_keys=True))
            listed = next((one for one in entry.tools if one.tool.name == tool.name), None)
            if key in returned:
                returned[key].setdefault("also", []).append(f"mcp_{entry.alias}")
            elif listed is not None:
                found = await anyio.to_thread.run_sync(docs.tool_docs, entry, listed, detail)
                returned[key] = {**found, "score": score}
                documents.append(returned[key])
        return [{**document, "poor": True} for document in documents] if poor else documents

    async def tools(self, names: tuple[str, ...], query: str | None) -> list[dict[str, Any]]:
        if not query:
            return [
                document for name in names for document in await self.server_docs(name, "summary")
            ]
        only = names[0] if len(names) == 1 else None
        return await self.search(query, 50, "summary", server=only)


def has_match(found: Sequence[Mapping[str, Any]]) -> bool:
    return bool(found) and not found[0].get("poor")


def starting_line(starting: Sequence[str], names: Sequence[str]) -> str:
    count = f"{len(starting)} of {len(names)} servers {'is' if len(starting) == 1 else 'are'}"
    return f"{count} still starting; search again in some seconds, with the same words."
