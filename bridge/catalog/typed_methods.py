"""What both kinds of stubs need of a tool: its data as the guest has it, and its parameters.

Owns how a method's parameters are written. Which types they have is for its callers to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.catalog.entries import ToolEntry, returns
from bridge.guest.signatures import Argument


def tool_data(entry: ToolEntry) -> dict[str, Any]:
    """Return what the guest's readers need of a tool, as in `Run.servers`."""
    tool = entry.tool
    document: dict[str, Any] = {
        "name": tool.name,
        "alias": entry.alias,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
    }
    result, observed = returns(entry)
    if observed:
        document["observed"] = result
        document["observations"] = entry.observations
    elif result is not None:
        document["outputSchema"] = dict(result)
    return document


def parameter_list(arguments: Iterable[Argument], rest: str, any_type: str) -> list[str]:
    """Return the parameters of a function as source."""
    parts = []
    starred = False
    for argument in arguments:
        if argument.keyword_only and not starred:
            starred = True
            parts.append("*")
        default = "" if argument.default is None else f" = {argument.default}"
        parts.append(f"{argument.alias}: {argument.text}{default}")
    if rest:
        parts.append(f"**{rest}: {any_type}")
    return parts


def receiver(arguments: Iterable[Argument]) -> str:
    """Return what a method's first parameter is called where one of its own is `self`."""
    taken = {argument.alias for argument in arguments}
    name = "self"
    while name in taken:
        name = f"_{name}"
    return name
