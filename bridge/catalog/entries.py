"""What is known of each server at one moment, with every alias settled.

Owns the values that the rest of the catalog works on, and how they are put together from what
discovery and the sessions know. Fetches nothing: a server whose tools nobody has listed yet is
here too, marked so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.naming import server_aliases, tool_aliases
from bridge.model import Json, Tool


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
    """

    name: str
    alias: str
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()
    known: bool = False
    loaded: bool = False


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


def tool_entries(tools: Sequence[Tool]) -> tuple[ToolEntry, ...]:
    """Return the tools of one server with their aliases; of two with one name the first counts."""
    unique: dict[str, Tool] = {}
    for tool in tools:
        unique.setdefault(tool.name, tool)
    aliases = tool_aliases(tuple(unique))
    return tuple(ToolEntry(tool=tool, alias=aliases[name]) for name, tool in unique.items())
