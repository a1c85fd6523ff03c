"""The catalog's values: servers and tools with their aliases, descriptions and learned shapes.

Builds them from the configured servers and their known tools. Fetches nothing: a server whose tools
are unknown has an entry with `known` false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bridge.catalog.naming import tool_aliases
from bridge.guest.schema.names import own_letters
from bridge.model import Json, Tool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The learned shape of a tool's results.

    Attributes:
        schema: The shape as a JSON Schema, without any value.
        count: Number of calls that it was learned from.
    """

    schema: Mapping[str, Json]
    count: int


Recall = Callable[[Tool], Observation | None]
"""Returns the learned shape of a tool's results, if there is one."""


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool and its alias.

    Attributes:
        observed: A learned JSON Schema of its results, if the tool declares none.
        observations: Number of calls that it was learned from.
    """

    tool: Tool
    alias: str
    observed: Mapping[str, Json] | None = None
    observations: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server and its alias.

    Attributes:
        tools: In the server's order, each name once.
        known: Whether its tools are known; if not, `tools` is empty.
        loaded: Whether the current run has it as `mcp_<alias>`.
        changing: Whether it announces changes of its tools, as when a call adds some.
        twin: Alias of an earlier server with the same tools; see `mark_twins`.
    """

    name: str
    alias: str
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    known: bool = False
    loaded: bool = False
    changing: bool = False
    twin: str = ""

    @cached_property
    def by_alias(self) -> Mapping[str, ToolEntry]:
        return {each.alias: each for each in self.tools}

    def named(self, tool: str) -> ToolEntry | None:
        """Return the tool of that name or alias, or the only one that is spelled alike."""
        for each in self.tools:
            if tool in (each.tool.name, each.alias):
                return each
        same = self._by_letters.get(own_letters(tool, self.name), ())
        return same[0] if len(same) == 1 else None

    @cached_property
    def _by_letters(self) -> Mapping[str, Sequence[ToolEntry]]:
        found = defaultdict[str, list[ToolEntry]](list)
        for each in self.tools:
            found[own_letters(each.alias, self.name)].append(each)
        return found


def mark_twins(servers: Sequence[ServerEntry]) -> tuple[ServerEntry, ...]:
    """Return the servers; one with the same tools as an earlier one names it as its `twin`."""
    first: dict[tuple[str, ...], list[ServerEntry]] = {}
    marked = []
    for server in servers:
        alike = first.setdefault(tuple(entry.tool.name for entry in server.tools), [])
        twin = next((other.alias for other in alike if _said(server) == _said(other)), "")
        if twin and server.tools:
            marked.append(replace(server, tools=(), twin=twin))
        else:
            alike.append(server)
            marked.append(server)
    return tuple(marked)


def _said(server: ServerEntry) -> list[tuple[object, ...]]:
    return [(e.tool.description, e.tool.input_schema, returns(e)) for e in server.tools]


def tool_entries(tools: Sequence[Tool], recall: Recall | None = None) -> tuple[ToolEntry, ...]:
    """Return the tools of one server with their aliases; of two with one name the first counts.

    Args:
        recall: Returns the learned shape for tools without an output schema.
    """
    unique: dict[str, Tool] = {}
    for tool in tools:
        unique.setdefault(tool.name, tool)
    aliases = tool_aliases(tuple(unique))
    entries = []
    for name, tool in unique.items():
        entry = ToolEntry(tool=tool, alias=aliases[name])
        seen = recall(tool) if recall is not None and tool.output_schema is None else None
        if seen is not None:
            entry = replace(entry, observed=seen.schema, observations=seen.count)
        entries.append(entry)
    return tuple(entries)


def returns(entry: ToolEntry) -> tuple[Mapping[str, Json] | None, bool]:
    """Return the schema of a tool's results, and whether it is only learned from calls.

    A declared schema is a promise; a learned one may be wrong the next time. None without either.
    """
    if entry.tool.result_schema is not None:
        return entry.tool.result_schema, False
    return entry.observed, entry.observed is not None
