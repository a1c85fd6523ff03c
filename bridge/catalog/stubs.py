"""Signatures for the model, and the data from which the guest builds what programs call.

Owns the text of a signature and the shape of `Run.servers` and `Run.discovered`. Both are data: the
guest makes functions from them without generating source, so nothing that a server writes in a
name or a description can become code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.entries import returns as result_schema
from bridge.catalog.prose import one_line
from bridge.catalog.schema import Parameter, is_open, parameters, schema_order, type_text
from bridge.model import Json, Tool

MAX_SIGNATURE_CHARS = 480
"""Longest signature: ten typed parameters fit; what does not is coarsened, never cut in a word."""

MAX_DESCRIPTION_CHARS = 200  # Of a server's description, in the list of all discovered servers.

_TYPE_BUDGETS = (160, 48, 0)
"""Characters for each parameter's type, tried in turn until the signature fits."""

_MAX_NAME_CHARS = 64  # A parameter with a longer name is left to the full documentation.


def signature(
    tool: Tool, alias: str, result: Mapping[str, Json] | None = None, *, returns: bool = True
) -> str:
    """Return how to call `tool`, as the head of an async function.

    Parameters are in the schema's order, which is the one by position; after a `*` they have to be
    named. `= ...` marks an optional parameter without a short default. What does not fit loses its
    type, and then becomes `**others`.

    Args:
        result: The schema of its results, if not the tool's own.
        returns: Whether to include the return type.
    """
    result = tool.result_schema if result is None else result
    result = result if returns else None
    # Names that alone are too long need no types to show that they do not fit.
    least = sum(
        len(name) for name in schema_order(tool.input_schema) if len(name) <= _MAX_NAME_CHARS
    )
    for budget in _TYPE_BUDGETS if least <= MAX_SIGNATURE_CHARS else ():
        text = _head(tool, alias, parameters(tool.input_schema, budget=budget))
        text = f"{text} -> {_returns(result, budget)}"
        if len(text) <= MAX_SIGNATURE_CHARS:
            return text
    bare = [replace(one, type="") for one in parameters(tool.input_schema, budget=0)]
    more = False
    while True:
        text = f"{_head(tool, alias, bare, more=more)} -> {_returns(result, 0)}"
        if len(text) <= MAX_SIGNATURE_CHARS or not bare:
            return text
        optional = [one for one in bare if not one.required]
        bare.remove((optional or bare)[-1])
        more = True


def tool_data(entry: ToolEntry) -> dict[str, Any]:
    """Return a tool's part of `Run.servers`."""
    tool = entry.tool
    document: dict[str, Any] = {
        "name": tool.name,
        "alias": entry.alias,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
    }
    result, observed = result_schema(entry)
    if observed:
        document["observed"] = result
        document["observations"] = entry.observations
    elif result is not None:
        document["outputSchema"] = dict(result)
    return document


def call_signature(server_alias: str, entry: ToolEntry, *, returns: bool = True) -> str:
    """Return the signature as a program writes the call: `mcp_github.create_issue(...)`.

    A return type of `Any` is left out. A learned return type looks like a declared one: only the
    full documentation distinguishes them.
    """
    result = result_schema(entry)[0]
    text = signature(entry.tool, entry.alias, result, returns=returns).removeprefix("async def ")
    return f"mcp_{server_alias}.{text.removesuffix(' -> Any')}"


def run_server(server: ServerEntry) -> dict[str, Any]:
    return {
        "name": server.name,
        "alias": server.alias,
        "description": server.description,
        "tools": [tool_data(entry) for entry in server.tools],
    }


def to_call(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's part of `Run.servers`, reduced to what calling it needs.

    The guest then builds no documentation and no signature.
    """
    return {key: tool[key] for key in ("name", "alias", "inputSchema")}


def run_discovered(servers: Sequence[ServerEntry]) -> list[dict[str, Any]]:
    """Return `Run.discovered`: one entry for every server, loaded or not."""
    return [
        {
            "name": server.name,
            "alias": server.alias,
            "description": one_line(server.description, MAX_DESCRIPTION_CHARS),
            "loaded": server.loaded,
        }
        for server in servers
    ]


def _returns(result: Mapping[str, Json] | None, budget: int) -> str:
    return "Any" if result is None else type_text(result, budget=budget)


def _head(tool: Tool, alias: str, listed: Sequence[Parameter], *, more: bool = False) -> str:
    shown = [one for one in listed if len(one.name) <= _MAX_NAME_CHARS]
    parts = list[str]()
    optional = False
    for one in shown:
        if one.required and optional and "*" not in parts:
            parts.append("*")
        optional = optional or not one.required
        parts.append(_argument(one))
    if more or len(shown) < len(listed):
        # Only says that there are more: the full documentation has them.
        parts.append("**others")
    elif is_open(tool.input_schema):
        parts.append("**arguments")
    return f"async def {alias}({', '.join(parts)})"


def _argument(parameter: Parameter) -> str:
    text = f"{parameter.name}: {parameter.type}" if parameter.type else parameter.name
    if parameter.required:
        return text
    return f"{text} = {parameter.default or '...'}" if parameter.type else f"{text}=..."
