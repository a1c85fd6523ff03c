"""The catalog's values: servers and tools with their aliases, descriptions and learned shapes.

Builds them from the configured servers and their known tools. Fetches nothing: a server whose tools
are unknown has an entry with `known` false.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bridge.guest.schema.names import own_letters
from bridge.model import Json, Tool

MAX_ALIAS_CHARS = 64
"""Longest base: servers limit tool names to this, and longer ones only cost the model tokens."""

RESERVED_SERVER_ALIASES = frozenset({"servers"})  # `mcp_servers` is the mapping of all servers.

RESERVED_TOOL_ALIASES = frozenset({"list_tools"})
"""Methods of every server object; a tool of that name becomes `list_tools_`."""

_OTHER = re.compile(r"[^a-z0-9_]+")

# The guest's Python may have more soft keywords than this interpreter.
_WORDS = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | {"match", "case", "type"}


def server_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each server name's alias, in the order given; `mcp_<alias>` is what programs use."""
    return _aliases(names, default="server", reserved=RESERVED_SERVER_ALIASES)


def tool_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each tool name's alias within its server, in the order given."""
    return _aliases(names, default="tool", reserved=RESERVED_TOOL_ALIASES)


def _aliases(names: Iterable[str], *, default: str, reserved: frozenset[str]) -> dict[str, str]:
    unique = dict.fromkeys(names)
    bases = {name: _base(name, default, reserved) for name in unique}
    taken = set(bases.values())
    first: set[str] = set()
    counters: dict[str, int] = {}
    aliases: dict[str, str] = {}
    for name in sorted(unique, key=lambda name: (bases[name], name != bases[name], name)):
        base = bases[name]
        if base not in first:
            first.add(base)
            aliases[name] = base
            continue
        number = counters.get(base, 2)
        while f"{base}_{number}" in taken:
            number += 1
        counters[base] = number + 1
        aliases[name] = f"{base}_{number}"
        taken.add(aliases[name])
    return {name: aliases[name] for name in unique}


def _base(name: str, default: str, reserved: frozenset[str]) -> str:
    plain = name[:1024]  # A server chooses the name.
    if not plain.isascii():
        taken_apart = unicodedata.normalize("NFKD", plain)
        plain = "".join(char for char in taken_apart if not unicodedata.combining(char))
    base = _OTHER.sub("_", plain.lower()).strip("_") or default
    if base[0].isdigit():
        base = f"_{base}"
    base = base[:MAX_ALIAS_CHARS].rstrip("_")
    if base in _WORDS or base in reserved:
        base = f"{base}_"
    return base


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
