"""What is known of each server at one moment, with every alias settled.

Owns the values that the rest of the catalog works on, and how they are put together from what
discovery and the sessions know. Fetches nothing: a server whose tools nobody has listed yet is
here too, marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.catalog.naming import server_aliases, tool_aliases
from bridge.model import Json, Tool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What calls of a tool have returned.

    Attributes:
        schema: Their shape as a JSON Schema, without any value.
        count: From how many calls it was learnt.
    """

    schema: Mapping[str, Json]
    count: int


Recall = Callable[[Tool], Observation | None]
"""Gives what calls of a tool have returned, if that is known."""


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool and the name that programs call it by.

    Attributes:
        observed: A JSON Schema of what its calls have returned, for one that declares none.
        observations: How many calls that was learnt from.
    """

    tool: Tool
    alias: str
    observed: Mapping[str, Json] | None = None
    observations: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server and the name that programs use for it.

    Attributes:
        tools: In the server's order, each name once.
        known: Whether the server has been asked for its tools; if not, `tools` is empty.
        loaded: Whether the run at hand has it as `mcp_<alias>`.
        twin: Alias of an earlier server with the same tools; see `told_once`.
    """

    name: str
    alias: str
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    known: bool = False
    loaded: bool = False
    twin: str = ""

    def named(self, tool: str) -> ToolEntry | None:
        """Return the tool of that name or alias, if there is one."""
        return next((each for each in self.tools if tool in (each.tool.name, each.alias)), None)


def server_entries(
    descriptions: Mapping[str, str],
    tools: Mapping[str, Sequence[Tool]],
    *,
    loaded: Collection[str] = (),
) -> tuple[ServerEntry, ...]:
    """Return an entry for every server, in the order of `descriptions`.

    Args:
        descriptions: Every discovered server's name and description. Aliases depend on the whole
            set, so pass all of them even if only some matter.
        tools: Tools of the servers that have been asked; of two with one name the first counts.
        loaded: Names of the servers that the run at hand loads.
    """
    aliases = server_aliases(tuple(descriptions))
    return tuple(
        ServerEntry(
            name=name,
            alias=aliases[name],
            description=description,
            tools=tool_entries(tools.get(name, ())),
            known=name in tools,
            loaded=name in loaded,
        )
        for name, description in descriptions.items()
    )


def told_once(servers: Sequence[ServerEntry]) -> tuple[ServerEntry, ...]:
    """Return the servers, of which those with the tools of an earlier one name that instead."""
    first: dict[tuple[str, ...], list[ServerEntry]] = {}
    found = []
    for server in servers:
        alike = first.setdefault(tuple(entry.tool.name for entry in server.tools), [])
        twin = next((other for other in alike if _same_tools(server, other)), None)
        if twin is not None and server.tools:
            found.append(replace(server, tools=(), twin=twin.alias))
            continue
        alike.append(server)
        found.append(server)
    return tuple(found)


def _same_tools(one: ServerEntry, other: ServerEntry) -> bool:
    return all(
        (mine.tool.description, mine.tool.input_schema, returns(mine))
        == (theirs.tool.description, theirs.tool.input_schema, returns(theirs))
        for mine, theirs in zip(one.tools, other.tools, strict=True)
    )


def tool_entries(tools: Sequence[Tool], recall: Recall | None = None) -> tuple[ToolEntry, ...]:
    """Return the tools of one server with their aliases; of two with one name the first counts.

    Args:
        recall: Asked about the tools that do not declare what they return.
    """
    unique: dict[str, Tool] = {}
    for tool in tools:
        unique.setdefault(tool.name, tool)
    aliases = tool_aliases(tuple(unique))
    return tuple(_entry(tool, aliases[name], recall) for name, tool in unique.items())


def _entry(tool: Tool, alias: str, recall: Recall | None) -> ToolEntry:
    seen = recall(tool) if recall is not None and tool.output_schema is None else None
    if seen is None:
        return ToolEntry(tool=tool, alias=alias)
    return ToolEntry(tool=tool, alias=alias, observed=seen.schema, observations=seen.count)


def returns(entry: ToolEntry) -> tuple[Mapping[str, Json] | None, bool]:
    """Return the schema of what a tool returns, and whether it is only observed.

    What a tool declares is a promise; what it was seen to return may differ the next time. None if
    neither is known.
    """
    if entry.tool.result_schema is not None:
        return entry.tool.result_schema, False
    return entry.observed, entry.observed is not None
