"""`search_tools`: its schema, the parser of its arguments, and the text of its hits.

The tool's description does not depend on the configuration, so clients can cache it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from bridge.catalog.docs import Detail
from bridge.catalog.prose import clip, paragraphs
from bridge.catalog.search import DEFAULT_LIMIT, MAX_LIMIT
from bridge.errors import BridgeError, InvalidRequestError
from bridge.inventory.guide import has_match, starting_line
from bridge.inventory.project_servers import waiting_line
from bridge.model import Json
from bridge.runs import Engine
from bridge.server.arguments import checked_arguments, field
from bridge.server.content import make_tool, result_or_error, tool_result

SEARCH_TOOL = "search_tools"

MAX_TEXT_CHARS = 60_000  # Of a result: servers may describe fifty hits at any length.


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    query: str
    limit: int = DEFAULT_LIMIT
    server: str | None = None
    detail: Detail = "summary"


def search_tool() -> types.Tool:
    return make_tool(
        SEARCH_TOOL,
        "Search the tools of all MCP servers",
        reads=True,
        _meta={
            "anthropic/searchHint": "find tools of the user's MCP servers, to call with run_python"
        },
        description=(
            "Find tools of the user's MCP servers by what they do. Returns signatures that "
            "run_python programs can call, best first."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "query": field("string", 'In a few words: "create issue".'),
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LIMIT,
                    "default": DEFAULT_LIMIT,
                },
                "server": field("string", "Only this server's tools."),
                "detail": field(
                    "string",
                    '"full" adds schemas and examples.',
                    enum=["summary", "full"],
                    default="summary",
                ),
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )


async def search_result(
    engine: Engine, arguments: Mapping[str, Json] | None, principal: str
) -> types.CallToolResult:
    """Return the result of a search, or of its failure; without a principal, no skills."""
    return await result_or_error("search", _search(engine, arguments, principal), _error_result)


def parse_search(arguments: Mapping[str, Json] | None) -> SearchRequest:
    given = checked_arguments(SEARCH_TOOL, arguments, search_tool().input_schema, ("query",))
    if not given["query"].strip():
        message = f"{SEARCH_TOOL} needs `query`: what the tool should do, in a few words."
        raise InvalidRequestError(message, remedy='For example "create issue".')
    # Some clients write whole numbers with a point.
    return SearchRequest(**{**given, "limit": int(given.get("limit", DEFAULT_LIMIT))})


async def _search(
    engine: Engine, arguments: Mapping[str, Json] | None, principal: str
) -> types.CallToolResult:
    request = parse_search(arguments)
    servers = engine.servers
    await servers.refresh()
    only = None if request.server is None else servers.resolve(request.server)
    names = servers.names() if only is None else (only,)
    skills = only is None and engine.skills.may_list(principal)
    found, errors = await engine.guide.search_servers(
        names, request.query, request.limit, request.detail, server=only, skills=skills
    )
    starting = servers.starting_servers(errors)
    left_out = {
        name: clip((error.message.splitlines() or [error.code])[0], 160)
        for name, error in errors.items()
    }
    document: dict[str, Any] = {"tools": found}
    if left_out:
        document["leftOut"] = left_out
    text = _text(request, found, left_out, names, starting)
    if only is None and servers.discovery.proposed:
        document["notApproved"] = [entry.name for entry in servers.discovery.proposed[:MAX_LIMIT]]
        if not has_match(found):
            # One of them may have a matching tool.
            text = f"{text}\n{waiting_line(servers.discovery.proposed)}"
    return tool_result([types.TextContent(text=text)], document, engine.settings.structured)


def _text(
    request: SearchRequest,
    found: Sequence[Mapping[str, Any]],
    left_out: Mapping[str, str],
    names: Sequence[str],
    starting: Sequence[str],
) -> str:
    lines = [starting_line(starting, names)] if starting else []
    failed = [name for name in left_out if name not in starting]
    if has_match(found):
        lines += ["Best first. Call them in run_python, each with `await`:", *_hits(found)]
    elif found and not starting:
        other = "such as a verb and what it acts on, or the name of a server."
        lines += ["Perhaps:", *_hits(found), f"Otherwise try other words, {other}"]
    elif not starting:
        lines.append(_no_hits_text(request, names))
    lines += [f"Not searched: {name}: {left_out[name]}" for name in failed[:5]]
    if len(failed) > 5:
        lines.append(f"Not searched either: {len(failed) - 5} more servers.")
    return "\n".join(lines)


def _hits(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    room = MAX_TEXT_CHARS
    for number, docs in enumerate(found):
        text = "\n".join(hit_lines(docs))
        room -= len(text)
        if room < 0 and number:
            lines.append(f"{len(found) - number} more did not fit; lower `limit` or `detail`.")
            break
        lines.append(text[:MAX_TEXT_CHARS])
    return lines


def hit_lines(docs: Mapping[str, Any]) -> list[str]:
    """Return a hit's text for the model; all lines but the signature are indented."""
    lines = [docs["signature"]]
    if docs.get("description"):
        # Every line is indented: at the margin it would look like the bridge's text.
        lines += [f"    {line}" for line in paragraphs(docs["description"].strip())]
    if docs.get("also"):
        lines.append(f"    The same: {', '.join(docs['also'])}")
    for key in ("inputSchema", "outputSchema"):
        if key in docs:
            schema = json.dumps(docs[key], ensure_ascii=False, separators=(",", ":"))
            lines.append(f"    {key}: {' '.join(paragraphs(schema))}")
    if docs.get("example"):
        lines.append(f"    {docs['example']}")
    return lines


def _no_hits_text(request: SearchRequest, names: Sequence[str]) -> str:
    if not names:
        return "No MCP servers are configured, so there are no tools to find."
    if request.server is not None:
        return (
            f"No tool of {names[0]} fits {request.query!r:.100}. Try other words, leave out "
            f"`server`, or list its tools: print(await runtime.list_tools({names[0]!r}))."
        )
    return (
        f"No tool fits {request.query!r:.100}. Try other or fewer words, such as a verb and what "
        'it acts on ("create issue"), or the name of a server.'
    )


def _error_result(error: BridgeError) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
