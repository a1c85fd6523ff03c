"""What the model is told: of single tools, of what a program can do, and of `run_python` itself.

Owns the wording and its budgets. Everything that servers wrote passes through
`bridge.catalog.prose` before it stands in a text of ours. Does not choose which tools to document;
that is search, or the program.

Every call in these texts is written with the `await` it needs, and nothing is named here that a
program cannot use as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, Literal

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.prose import first_sentence, one_line
from bridge.catalog.schema import example_value, parameters
from bridge.catalog.stubs import call_signature, is_argument_name
from bridge.model import Limits
from bridge.text import valid_text

Detail = Literal["summary", "full"]

MAX_CAPABILITIES_CHARS = 2_500
"""The guide is read whole, by a model that pays for it."""

LISTING_BYTES = 8_000
"""For servers and tools in the description of `run_python`: about 2,000 tokens, paid once in every
conversation, where being spared a search pays most."""

_SUMMARY_CHARS = 240
_LISTED_SUMMARY_CHARS = 80
_LISTED_SERVER_CHARS = 100
_GUIDE_SERVERS_CHARS = 400
_SAMPLE_CHARS = 100
_SAMPLED_TOOLS = 50
_UNLISTED = "  (not asked for its tools yet; searching does)"
_KIBIBYTE = 1024
_MEBIBYTE = 1024 * 1024


def tool_docs(server: ServerEntry, entry: ToolEntry, detail: Detail = "summary") -> dict[str, Any]:
    """Return the documentation of one tool, as programs get it from `runtime`."""
    tool = entry.tool
    docs: dict[str, Any] = {
        "server": server.name,
        "serverAlias": server.alias,
        "tool": tool.name,
        "toolAlias": entry.alias,
        "signature": call_signature(server.alias, entry),
    }
    if detail == "summary":
        docs["description"] = first_sentence(tool.description, _SUMMARY_CHARS)
        return docs
    docs["description"] = valid_text(tool.description)
    docs["inputSchema"] = dict(tool.input_schema)
    if tool.output_schema is not None:
        docs["outputSchema"] = dict(tool.output_schema)
    docs["example"] = example_call(server, entry)
    return docs


def server_docs(server: ServerEntry, detail: Detail = "summary") -> list[dict[str, Any]]:
    """Return the documentation of a server's tools, in the server's order."""
    return [tool_docs(server, entry, detail) for entry in server.tools]


def example_call(server: ServerEntry, entry: ToolEntry) -> str:
    """Return a call of the tool with the arguments it requires."""
    schema = entry.tool.input_schema
    plain, odd = [], []
    for parameter in parameters(schema):
        if not parameter.required:
            continue
        value = example_value(parameter, schema)
        if is_argument_name(parameter.name):
            plain.append(f"{parameter.name}={value}")
        else:
            odd.append(f"{parameter.name!r}: {value}")
    if odd:
        plain.append(f"**{{{', '.join(odd)}}}")
    return f"await mcp_{server.alias}.{entry.alias}({', '.join(plain)})"


def capabilities(
    servers: Sequence[ServerEntry], *, limits: Limits | None = None, max_timeout: float = 120
) -> str:
    """Return the guide to what a program in a run can do, in Markdown."""
    limits = limits or Limits()
    mine = [server for server in servers if server.loaded] or list(servers)
    names = [f"`mcp_{server.alias}` ({one_line(server.name, 60)})" for server in mine]
    listed = _joined(names, _GUIDE_SERVERS_CHARS) or "none are configured"
    call = _sample_call(servers)
    return f"""\
# Programs in run_python

Servers: {listed}.

## Calling tools
```python
import asyncio
value = {call}
both = await asyncio.gather(first_call, second_call)  # calls without await; they run at once
server = mcp_servers["server-name"]                   # by the server's own name
from mcp.servers import {_sample_alias(servers)}  # as a module of functions
```
Calls are async: each needs `await`, at top level too. Arguments go by keyword, or by position in \
the order of the schema.

## What a call returns
Structured content if the tool gives any; else its text, parsed when it is a JSON object or array; \
else the text. Images, audio and binary resources are a `Blob`: `.mime_type`, `.data`, \
`.save(path)`. Several blocks are a list. In dicts `value.key` is `value["key"]`.

## When a call fails
`MCPError` (has `.server`, `.tool`, `.data`) when the tool or its server failed; `TypeError` for \
wrong arguments, before anything is sent.
```python
try:
    value = {call}
except runtime.MCPError as error:
    print(error.tool, error)
```

## Finding tools
```python
await runtime.search_tool_docs("create issue", limit=5)       # all servers, best first
await runtime.query_tool_docs("server", "tool", detail="full")  # schemas and an example
await runtime.list_tools("server")
runtime.discovered_servers(detailed=True)                     # no await
await runtime.call_tool("server", "tool", {{"key": "value"}})   # by name
await runtime.call_tool_raw("server", "tool", {{}})             # the whole CallToolResult
```
`LOADED_MCP_SERVERS` names the servers of this run.

## Limits
{_limits_text(limits, max_timeout)} No network but through tools. Files: `/workspace` (working \
directory) and `/tmp`; nothing outlasts the run.
"""


def tool_description(
    servers: Sequence[ServerEntry],
    limits: Limits,
    *,
    max_timeout: float = 120,
    packages: Sequence[str] = (),
    listing_bytes: int = LISTING_BYTES,
) -> str:
    """Return the description of `run_python`.

    Args:
        servers: Every server, with the tools known so far.
        packages: What can be imported besides the standard library.
        listing_bytes: Budget of the list of servers; the rest is of fixed length.
    """
    imports = "the standard library"
    if packages:
        imports += f" and {one_line(', '.join(packages), 200)}"
    return f"""\
Run a Python program that can call the tools of the MCP servers listed below. It runs in a \
sandbox; only what it prints, and the value of its last expression, comes back. Do the whole job \
in one program: call tools, keep their results in variables, filter and join them in code, and \
print only what you need.

- Call: `{_sample_call(servers)}`. Every tool is async: always `await`, at top level too. Run \
independent calls at once: `import asyncio`, then `await asyncio.gather(call1, call2)`.
- Value: the tool's structured content, else its text (parsed if it is a JSON object or array). If \
no return type is listed, print a shortened sample first: `print(str(value)[:500])`.
- Errors: a failing tool raises `runtime.MCPError` with the tool's message; wrong arguments raise \
`TypeError` naming the parameter. What is not caught comes back as a traceback.
- Find tools on all servers: `for d in await runtime.search_tool_docs("create issue"): \
print(d["signature"], d["description"])`. Everything on one tool: \
`print(await runtime.query_tool_docs("server", "tool", detail="full"))`.
- A server is loaded because the code names it; give `servers` only for names picked at run time.
- Importable: {imports}. No network, no installing. Files in `/workspace` are gone after the run. \
{_limits_text(limits, max_timeout)}

{_listing(servers, listing_bytes)}"""


def _limits_text(limits: Limits, max_timeout: float) -> str:
    return (
        f"Time: {limits.timeout:g} s, up to {max_timeout:g} s with `timeout`. "
        f"Memory: {limits.memory_bytes // _MEBIBYTE} MiB, files included. "
        f"Output past {limits.output_bytes // _KIBIBYTE} KiB is dropped, and that is reported."
    )


def _listing(servers: Sequence[ServerEntry], budget: int) -> str:
    """Return the servers with as much on their tools as the budget holds."""
    if not servers:
        return "No MCP servers are configured; programs can still compute."
    levels: tuple[tuple[str, Callable[[ServerEntry], Iterable[str]]], ...] = (
        ("Servers and their tools (optional arguments after `*`):", _with_summaries),
        ("Servers and their tools (optional arguments after `*`):", _with_signatures),
        ("Servers and their tools (search for how to call them):", _with_names),
        ("Servers (search for their tools):", _alone),
    )
    for heading, write in levels:
        text = _within(budget, chain([heading], chain.from_iterable(map(write, servers))))
        if text is not None:
            return text
    heading = f"{len(servers)} servers (search for their tools): "
    aliases = [f"mcp_{server.alias}" for server in servers]
    return f"{heading}{_joined(aliases, budget - len(heading))}."


def _within(budget: int, lines: Iterable[str]) -> str | None:
    """Return the lines joined by newlines; None as soon as they pass the budget."""
    kept: list[str] = []
    size = -1
    for line in lines:
        size += len(line.encode()) + 1
        if size > budget:
            # With thousands of tools most of the work is in the lines that are not made now.
            return None
        kept.append(line)
    return "\n".join(kept)


def _line(server: ServerEntry) -> str:
    """Return for example "mcp_git_hub = git-hub: Issues and pull requests."."""
    name = one_line(server.name, 60)
    text = f"mcp_{server.alias} = {name}"
    summary = first_sentence(server.description, _LISTED_SERVER_CHARS)
    return f"{text}: {summary}" if summary else text


def _alone(server: ServerEntry) -> Iterable[str]:
    yield _line(server)


def _with_names(server: ServerEntry) -> Iterable[str]:
    yield _line(server)
    if server.known:
        yield f"  tools: {', '.join(entry.alias for entry in server.tools)}"
    else:
        yield _UNLISTED


def _with_signatures(server: ServerEntry) -> Iterable[str]:
    yield _line(server)
    for entry in server.tools:
        yield f"  .{_short_signature(server, entry)}"
    if not server.known:
        yield _UNLISTED


def _with_summaries(server: ServerEntry) -> Iterable[str]:
    yield _line(server)
    for entry in server.tools:
        summary = first_sentence(entry.tool.description, _LISTED_SUMMARY_CHARS)
        comment = f"  # {summary}" if summary else ""
        yield f"  .{_short_signature(server, entry)}{comment}"
    if not server.known:
        yield _UNLISTED


def _short_signature(server: ServerEntry, entry: ToolEntry) -> str:
    return call_signature(server.alias, entry).removeprefix(f"mcp_{server.alias}.")


def _sample_call(servers: Sequence[ServerEntry]) -> str:
    """Return a call that exists if any tool is known: models imitate what they see."""
    every = ((server, entry) for server in servers for entry in server.tools)
    tools = list(islice(every, _SAMPLED_TOOLS))
    # One that changes nothing, if there is one, in case the example itself is tried.
    tools.sort(key=lambda pair: pair[1].tool.annotations.get("readOnlyHint") is not True)
    for server, entry in tools:
        call = example_call(server, entry)
        if len(call) <= _SAMPLE_CHARS:
            return call
    return f"await mcp_{_sample_alias(servers)}.tool_name(argument=value)"


def _sample_alias(servers: Sequence[ServerEntry]) -> str:
    return servers[0].alias if servers else "server"


def _joined(names: Sequence[str], limit: int) -> str:
    """Return as many names as fit `limit` characters, and how many were left out."""
    text = ", ".join(names)
    if len(text) <= limit:
        return text
    room = limit - len(" and 1,000,000 more: `runtime.discovered_servers()`")
    kept: list[str] = []
    for name in names:
        room -= len(name) + 2
        if room < 0:
            break
        kept.append(name)
    rest = f"{len(names) - len(kept):,} more: `runtime.discovered_servers()`"
    return f"{', '.join(kept)} and {rest}" if kept else rest
