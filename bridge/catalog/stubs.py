"""Signatures for the model, and the data from which the guest builds what programs call.

Owns the text of a signature and the shape of `Run.servers` and `Run.discovered`. Both are data: the
guest makes functions from them without generating source, so nothing that a server writes in a
name or a description can become code.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Mapping, Sequence
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

    Parameters before the bare `*` may be passed by position: they are the required ones that come
    first in the schema, so "schema order" and "required first" agree for them. `= ...` marks an
    optional parameter without a short default. Names that are no Python names are in `**{...}`,
    which is also how to pass them.

    Args:
        result: The schema of its results, if not the tool's own.
        returns: Whether to include the return type.
    """
    result = tool.result_schema if result is None else result
    result = result if returns else None
    names = [n for n in schema_order(tool.input_schema) if len(n) <= _MAX_NAME_CHARS]
    # Names that alone are too long need no types to show that they do not fit.
    for budget in _TYPE_BUDGETS if sum(map(len, names)) <= MAX_SIGNATURE_CHARS else ():
        text = _head(tool, alias, parameters(tool.input_schema, budget=budget))
        text = f"{text} -> {_returns(result, budget)}"
        if len(text) <= MAX_SIGNATURE_CHARS:
            return text
    listed = parameters(tool.input_schema, budget=0)
    required = tuple(parameter for parameter in listed if parameter.required)
    text = _head(tool, alias, required, more=len(listed) > len(required))
    text = f"{text} -> {_returns(result, 0)}"
    if len(text) <= MAX_SIGNATURE_CHARS:
        return text
    return f"async def {alias}(**arguments) -> {_returns(result, 0)}"


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


def is_argument_name(name: str) -> bool:
    """Return whether `name` can be a keyword in a call and arrives unchanged."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        # Python normalizes identifiers to NFKC.
        and unicodedata.normalize("NFKC", name) == name
    )


def _returns(result: Mapping[str, Json] | None, budget: int) -> str:
    return "Any" if result is None else type_text(result, budget=budget)


def _head(tool: Tool, alias: str, listed: Sequence[Parameter], *, more: bool = False) -> str:
    plain = [p for p in listed if len(p.name) <= _MAX_NAME_CHARS and is_argument_name(p.name)]
    odd = [p for p in listed if len(p.name) <= _MAX_NAME_CHARS and not is_argument_name(p.name)]
    more = more or len(plain) + len(odd) < len(listed)
    required = {parameter.name for parameter in plain if parameter.required}
    positional = 0
    for name in schema_order(tool.input_schema):
        if name not in required:
            break
        positional += 1
    parts = [_argument(parameter) for parameter in plain]
    if positional < len(parts):
        parts.insert(positional, "*")
    if odd:
        items = ", ".join(f"{p.name!r}{'' if p.required else '?'}: {p.type}" for p in odd)
        parts.append(f"**{{{items}}}")
    if more:
        # Only says that there are more: the full documentation has them.
        parts.append("**others")
    elif is_open(tool.input_schema):
        parts.append("**arguments")
    return f"async def {alias}({', '.join(parts)})"


def _argument(parameter: Parameter) -> str:
    if parameter.required:
        return f"{parameter.name}: {parameter.type}"
    return f"{parameter.name}: {parameter.type} = {parameter.default or '...'}"
