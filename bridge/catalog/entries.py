"""Servers and tools with their aliases, the Python identifiers by which programs use them.

Of names with one base, the first by whether it equals its base, then by code point, gets the base;
the others get `_2`, `_3` and so on. A set of names therefore has the same aliases in every run.
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

MAX_ALIAS_CHARS = 64  # Servers choose names; longer ones only cost the model tokens.
RESERVED_SERVER_ALIASES = frozenset({"servers"})  # `mcp_servers` is the mapping of all servers.
RESERVED_TOOL_ALIASES = frozenset({"list_tools"})  # Methods of every server object.

_OTHER = re.compile(r"[^a-z0-9_]+")

# The guest's Python may have more soft keywords than this interpreter.
_WORDS = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | {"match", "case", "type"}


def server_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each server name's alias, in the order given; `mcp_<alias>` is what programs use."""
    return _aliases(names, default="server", reserved=RESERVED_SERVER_ALIASES)


def tool_aliases(names: Sequence[str]) -> dict[str, str]:
    return _aliases(names, default="tool", reserved=RESERVED_TOOL_ALIASES)


def _aliases(names: Iterable[str], *, default: str, reserved: frozenset[str]) -> dict[str, str]:
    unique = dict.fromkeys(names, "")
    bases = {name: _base(name, default, reserved) for name in unique}
    taken = set(bases.values())
    numbers: dict[str, int] = {}
    aliases = unique.copy()
    for name in sorted(unique, key=lambda name: (bases[name], name != bases[name], name)):
        base = alias = bases[name]
        while base in numbers and alias in taken:
            alias = f"{base}_{numbers[base]}"
            numbers[base] += 1
        numbers.setdefault(base, 2)
        taken.add(alias)
        aliases[name] = alias
    return aliases


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
    """The learned shape of a tool's results, without any value, and from how many calls."""

    schema: Mapping[str, Json]
    count: int


Recall = Callable[[Tool], Observation | None]  # Returns the learned shape of a tool's results.


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool and its alias; `observed` is the learned schema of its results if it declares none."""

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
    """Return the tools of one server with their aliases; of two with one name the first counts."""
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
    """Return the schema of a tool's results, and whether it is only learned from calls."""
    if entry.tool.result_schema is not None:
        return entry.tool.result_schema, False
    return entry.observed, entry.observed is not None
