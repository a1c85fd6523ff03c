"""Model-facing texts: a tool's documentation, the guide to programs, the tool's description.

Servers' texts pass through `bridge.text` first. Every call in these texts has the `await`
it needs, and works if a program copies it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain, islice
from typing import Any, Literal

from bridge.catalog.entries import ServerEntry, ToolEntry, call_signature, mark_twins, tool_stub
from bridge.guest.schema.typetext import MAX_INLINE_CHARS, Head, Names
from bridge.model import Directory, Limits
from bridge.text import count_tokens, counted, first_sentence, join_names, one_line, valid_text

_HEADING_TOKENS = 24  # Tokens of the longest heading.

_HEADINGS = re.compile(
    r"(?:\s*(?=\S)(?:#[^\n]*|(\*\*|__)[^\n*]+\1|[^\n]*:|[^\n]*\n(?:=+|-+)|={3,}|-{3,})"
    r"[ \t]*(?:\n|$))+"
)
"""Headings and lines that end in a colon, at the beginning of a description."""


class Level(IntEnum):
    BARE = 0  # How many tools a server has.
    COUNTED = 1  # And a sentence on the server.
    NAMES = 2  # Each tool's name.
    SENTENCES = 3  # Each tool's name and a sentence on it.
    ARGUMENTS = 4  # Each tool's signature without the return type.
    SIGNATURES = 5
    SUMMARIES = 6  # Each tool's signature and a sentence on it.


def describe_servers(servers: Sequence[ServerEntry], tokens: int) -> str:
    """Return the list of servers and their tools, in at most `tokens` tokens."""
    if not servers:
        return "No MCP servers are configured; programs can still compute."
    room, servers = tokens, mark_twins(servers)
    # Tokens are counted line by line; the whole text may have a few more.
    for _ in range(4):
        levels = choose_levels(servers, room - _HEADING_TOKENS)
        if levels is None:
            break
        lines = chain.from_iterable(map(_lines, servers, levels))
        text = "\n".join([_list_header(servers, levels), *lines])
        excess = count_tokens(text) - tokens
        if excess <= 0:
            return text
        room -= excess
    return _only_aliases(servers, tokens, "`runtime.discovered_servers()`")


def introduce_servers(servers: Sequence[ServerEntry], tokens: int) -> str:
    # A line has at least one token, so many servers cannot fit.
    for chars in (60, 30) if len(servers) < tokens else ():
        lines = (_server_line(server, "", sentence=True, chars=chars) for server in servers)
        text = "\n".join(["Servers, in their own words:", *lines])
        if count_tokens(text) <= tokens:
            return text
    return _only_aliases(servers, tokens, "search_tools lists them")


def is_outdated(described: Sequence[ServerEntry], now: Sequence[ServerEntry]) -> bool:
    """Return whether a description made from `described` is wrong, not merely less detailed.

    With another description a client pays for its whole conversation again. So tools of servers
    that are asked for the first time count only once all servers have been asked.
    """
    if [(one.name, one.alias) for one in described] != [(one.name, one.alias) for one in now]:
        return True
    news = False
    for before, after in zip(described, now, strict=True):
        same_text = before.description == after.description
        # The first connection gives a server its own description.
        if not same_text and (before.known or before.description):
            return True
        if before.known and before.tools != after.tools:
            return True
        news = news or before.known != after.known or not same_text
    return news and all(server.known for server in now)


def choose_levels(servers: Sequence[ServerEntry], tokens: int) -> list[Level] | None:
    known: dict[tuple[int, Level], int] = {}

    def cost(number: int, level: Level, room: int) -> int:
        if (number, level) not in known:
            server, spent = servers[number], 0
            if _least(server, level) > room:
                return room + 1
            for line in _lines(server, level):
                spent += count_tokens(line) + 1
                if spent > room:
                    return spent
            known[number, level] = spent
        return known[number, level]

    def left_over(level: Level) -> int:
        left = tokens if sum(_least(server, level) for server in servers) <= tokens else -1
        for number in range(len(servers)):
            left -= cost(number, level, left) if left >= 0 else 0
        return left

    base = next((level for level in sorted(Level, reverse=True) if left_over(level) >= 0), None)
    if base is None:
        return None
    left, levels = left_over(base), [base] * len(servers)
    smallest_first = sorted(range(len(servers)), key=lambda number: len(servers[number].tools))
    for level in sorted(Level, reverse=True):
        if level <= base:
            break
        for number in smallest_first:
            if levels[number] > base:
                continue
            room = left + known[number, base]
            left = room - cost(number, level, room)
            if left < 0:
                # The servers that follow have more tools, so they are unlikely to fit either.
                left = room - known[number, base]
                break
            levels[number] = level
    return levels


def _least(server: ServerEntry, level: Level) -> int:
    """Return a lower bound of a server's tokens, without writing its lines."""
    tools = len(server.tools) if level >= Level.NAMES else 0
    return 1 + (2 if level == Level.NAMES else 4) * tools


def _list_header(servers: Sequence[ServerEntry], levels: Sequence[Level]) -> str:
    pairs = zip(servers, levels, strict=True)
    if not any(level >= Level.NAMES and server.known for server, level in pairs):
        return "Servers (search for their tools):"
    whole = min(levels) >= Level.SIGNATURES
    return f"Servers and their tools{'' if whole else ' (search for what is not shown)'}:"


def _lines(server: ServerEntry, level: Level) -> Iterator[str]:
    if server.twin:
        note = f" (same tools as mcp_{server.twin})"
        yield _server_line(server, note, sentence=level > Level.BARE)
        return
    if level <= Level.COUNTED:
        count = f" ({counted(len(server.tools), 'tool')})" if server.known else ""
        yield _server_line(server, count, sentence=level == Level.COUNTED)
        return
    yield _server_line(server, "" if server.known else " (search for its tools)", sentence=True)
    if level == Level.NAMES:
        if server.tools:
            yield f"  {', '.join(entry.alias for entry in server.tools)}"
        return
    for entry in server.tools:
        summary = ""
        if level in (Level.SENTENCES, Level.SUMMARIES):
            summary = first_sentence(entry.tool.description, 80)
        if level == Level.SENTENCES:
            yield f"  {entry.alias}: {summary}" if summary else f"  {entry.alias}"
            continue
        call = call_signature(server.alias, entry, returns=level != Level.ARGUMENTS)
        call = call.removeprefix(f"mcp_{server.alias}.")
        yield f"  .{call}  # {summary}" if summary else f"  .{call}"


def _server_line(server: ServerEntry, note: str, *, sentence: bool, chars: int = 100) -> str:
    """Return a line like "mcp_git_hub = git-hub: Issues and pull requests. (12 tools)"."""
    text = f"mcp_{server.alias}"
    if not sentence:
        return f"{text}{note}"
    name = one_line(server.name, 60)
    text = text if name == server.alias else f"{text} = {name}"
    begun = server.description[:4_000]
    body = begun[match.end() :] if (match := _HEADINGS.match(begun)) else begun
    summary = first_sentence(body.strip() or begun, chars)
    return f"{text}: {summary}{note}" if summary else f"{text}{note}"


def _only_aliases(servers: Sequence[ServerEntry], tokens: int, others: str) -> str:
    heading = f"{len(servers):,} servers (search for their tools): "
    rest = f"{{:,}} more: {others}"
    room = tokens - count_tokens(heading) - count_tokens(f" and {rest.format(len(servers))}.") - 1
    names = [f"mcp_{server.alias}" for server in servers]
    ends = accumulate(count_tokens(name) + 1 for name in names)
    kept = [name for name, end in zip(names, ends, strict=True) if end <= room]
    left_out = len(servers) - len(kept)
    if not left_out:
        return f"{heading}{', '.join(kept)}."
    more = rest.format(left_out)
    return f"{heading}{', '.join(kept)} and {more}." if kept else f"{heading}{more}."


_LINE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The environment of programs, for their documentation: packages, directories and Python."""

    packages: tuple[str, ...] = ()  # Entries of `allow`, or words for any.
    installed: tuple[tuple[str, str], ...] = ()  # Names and versions, the best known first.
    directories: tuple[Directory, ...] = ()
    roots: tuple[str, ...] = ()
    python: str = ""
    time_zone: str = "UTC"
    listed_only: bool = False  # Whether programs may use only the servers that their run lists.


def offers_line(offers: Offers) -> str:
    parts = [f" of Python {offers.python}"] if offers.python else []
    # The versions matter of those whose functions changed; the guide has all.
    names = [
        f"{name} {version}" if name in ("numpy", "pandas") else name
        for name, version in offers.installed
    ]
    parts += [f", {join_names(names, _LINE_CHARS)}." if names else "."]
    if offers.packages:
        parts.append(f" With `packages`: {join_names(offers.packages, _LINE_CHARS)}.")
    if offers.directories:
        parts.append(f" Directories: {join_names(_directories(offers), _LINE_CHARS)}.")
    return "".join(parts)


def offers_section(offers: Offers) -> str:
    lines = []
    if offers.installed:
        names = join_names([" ".join(pair) for pair in offers.installed], 4 * _LINE_CHARS)
        lines.append(f"Installed: {names}.")
    if offers.packages:
        names = join_names(offers.packages, 4 * _LINE_CHARS)
        lines.append(
            f"Packages, from an index and for this run only: {names}. Ask for them with "
            '`packages=["name==1.*"]`, or in the code:\n'
            '```python\n# /// script\n# dependencies = ["name==1.*"]\n# ///\n```'
        )
    if offers.directories:
        paths = join_names(_directories(offers), 4 * _LINE_CHARS)
        lines.append(f"The user's directories: {paths}.")
    if offers.roots:
        names = join_names([one_line(name, 60) for name in offers.roots], _LINE_CHARS)
        lines.append(
            f"The user also works in: {names}. Programs cannot see those; the user can offer them "
            "as [directories] of the bridge's settings."
        )
    return "## Packages and directories\n" + "\n".join(lines) + "\n\n" if lines else ""


def _directories(offers: Offers) -> list[str]:
    return [
        f"`{one.inside}` ({'read and write' if one.writable else 'read-only'})"
        for one in offers.directories
    ]


def root_names(roots: Iterable[tuple[str, str]], own: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of roots: the client's name, or the last part of the URI or path."""
    names: dict[str, None] = {}
    for name, address in (*roots, *(("", path) for path in own)):
        last = address.rstrip("/").rpartition("/")[2]
        shown = (one_line(text, 60).strip() for text in (name, last))
        names.setdefault(next(filter(None, shown), ""))
    return tuple(filter(None, names))[:40]  # A client may have any number.


Detail = Literal["summary", "full"]

DESCRIPTION_TOKENS = 1_500
"""Token budget of the description of `run_python`, which each conversation pays once."""

INSTRUCTIONS_TOKENS = 250
"""Token budget of the server instructions, which every conversation pays. In a client that loads
tools on demand, the model knows only them."""

_KEPT = """\
## Output
`display(value)`, or `value` as the last expression, shows a picture (matplotlib, PIL, a `Blob`), \
a data frame as text, Markdown or HTML. Figures left open are shown at the end.

What a result leaves out of stdout or stderr is kept; a later run reads it.
```python
await runtime.read_output(run_id, find="ERROR")                 # [(line number, line), ...]
await runtime.read_output(run_id, "stderr", lines=(100, 200))   # text; or offset=, length=
runtime.progress(3, 10, "loading")                              # no await; for the user
```

## Keeping what worked
```python
runtime.save_skill(function, description="...")  # no await; a later run: from skills import name
save_memory("key", value)                        # no await; JSON, for load_memory("key", default)
update_memory("key", lambda old: (old or []) + [1])   # list_memories(), delete_memory("key")
```

## Plans
With `mode="plan"` only reads happen. What a held call returns, and its fields, can be passed on \
to held calls, also in f-strings, lists and dicts; code that looks at it ends the plan.

"""


def tool_docs(server: ServerEntry, entry: ToolEntry, detail: Detail = "summary") -> dict[str, Any]:
    tool = entry.tool
    docs: dict[str, Any] = {
        "server": server.name,
        "serverAlias": server.alias,
        "tool": tool.name,
        "toolAlias": entry.alias,
        "signature": call_signature(server.alias, entry),
    }
    if detail == "summary":
        docs["description"] = first_sentence(tool.description, 240)
        return docs
    docs["description"] = valid_text(tool.description)
    docs["inputSchema"] = dict(tool.input_schema)
    if tool.result_schema is not None:
        docs["outputSchema"] = dict(tool.result_schema)
    elif entry.observed is not None:
        docs["observedSchema"] = dict(entry.observed.schema)
        docs["observations"] = entry.observed.count
    docs["example"] = example_call(server, entry)
    docs["stub"] = tool_stub(entry, server.alias)
    return docs


def server_docs(server: ServerEntry, detail: Detail = "summary") -> list[dict[str, Any]]:
    return [tool_docs(server, entry, detail) for entry in server.tools]


def example_call(server: ServerEntry, entry: ToolEntry) -> str:
    head = Head({"inputSchema": entry.tool.input_schema}, Names(inline=MAX_INLINE_CHARS))
    required = (one for one in head.arguments if one.required)
    given = [f"{one.alias}={_example_value(one.text)}" for one in required]
    return f"await mcp_{server.alias}.{entry.alias}({', '.join(given)})"


def _example_value(kind: str) -> str:
    if kind.startswith("Literal["):
        # Its first value, as Python writes it.
        first = re.match(r"Literal\[('(?:\\.|[^'])*'|\"(?:\\.|[^\"])*\"|[^,\]]+)", kind)
        return first[1] if first else "..."
    if kind.startswith(("list", "tuple", "dict", "{")):
        return "{...}" if kind[0] in "d{" else "[...]"
    plain = {"str": '"..."', "int": "1", "float": "1.0", "bool": "True"}
    return plain.get(kind.split(" | ", 1)[0], "...")


def capabilities(
    servers: Sequence[ServerEntry], *, limits: Limits | None = None, offers: Offers | None = None
) -> str:
    """Return the guide to what a program in a run can do, in Markdown."""
    mine = [server for server in servers if server.loaded] or list(servers)
    names = [f"`mcp_{server.alias}` ({one_line(server.name, 60)})" for server in mine]
    listed = join_names(names, 300, ": `runtime.discovered_servers()`") or "none are configured"
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
Structured content if the tool gives any; else its text, parsed when it is an object or array in \
JSON or in Python; else the text. Images, audio and binary resources are a `Blob`: `.mime_type`, \
`.data`, `.save(path)`. Several blocks are a list. In dicts `value.key` is `value["key"]`.

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
await runtime.query_tool_docs("server", "tool", detail="full")  # ["stub"], schemas, an example
await runtime.list_tools("server")
runtime.discovered_servers(detailed=True)                     # no await
await runtime.call_tool("server", "tool", {{"key": "value"}})   # by name
await runtime.call_tool_raw("server", "tool", {{}})             # the whole CallToolResult
await runtime.read_resource("server", "uri")  # list_resources, list_prompts, get_prompt as well
```
`LOADED_MCP_SERVERS` names the servers of this run.

{_KEPT}{offers_section(offers or Offers())}## Limits
{_limits_text(limits or Limits())} No network but through tools. Files of the run are in \
`/workspace`; files written there and in `out/` come back. `session="name"` keeps variables too.
"""


def tool_description(
    servers: Sequence[ServerEntry],
    limits: Limits,
    *,
    tokens: int = DESCRIPTION_TOKENS,
    checked: bool = True,
    offers: Offers | None = None,
) -> str:
    """Return the description of `run_python`, in at least 500 `tokens`."""
    offers = offers or Offers()
    beside = offers_line(offers)
    refused = "Unknown tools, wrong arguments and missing awaits are refused before anything runs, "
    refusal = f"{refused}with line numbers." if checked else "Wrong arguments raise `TypeError`."
    loading = (
        "A server is loaded because the code names it; `servers` is for names picked at run time."
    )
    if offers.listed_only:
        loading = "Only the servers listed in `servers` are loaded, and the code may use no other."
    fixed = f"""\
Run a Python program that calls the tools of the MCP servers below. Only what it prints, \
shows (`display(x)`: figures, images, data frames) and the value of its last expression comes \
back. Do the whole job in one program: keep results in \
variables, filter and join them in code, print only what you need.

- Call: `{_sample_call(servers)}`. Always `await`, at top level too. At once: `import asyncio`, \
then `await asyncio.gather(call1, call2)`.
- Value: structured content, else text, parsed if it is JSON or a Python literal. If no return \
type is shown, print a shortened sample first: `print(repr(value)[:500])`.
- Errors: a failing tool raises `runtime.MCPError`. {refusal}
- More tools: `search_tools`, or `for d in await runtime.search_tool_docs("create issue"): \
print(d["signature"], d["description"])`. One tool's typed stub: \
`print((await runtime.query_tool_docs("server", "tool", detail="full"))["stub"])`.
- {loading}
- Importable: the standard library{beside} No network. Files that the program writes come back. \
Time zone: {offers.time_zone}. {_limits_text(limits)}

"""
    return fixed + describe_servers(servers, tokens - count_tokens(fixed))


def instructions(servers: Sequence[ServerEntry], waiting: str = "") -> str:
    """Return the server instructions, which clients show their model before any tool.

    Without servers they begin with the line on those that wait for approval.
    """
    names = [one_line(server.name, 60) for server in servers]
    # Codex 0.169 shows its model only the first 247 characters of the instructions.
    begin = join_names(names, 150)
    begun = waiting or "No MCP server is configured; programs can still compute."
    if servers:
        begun = f"The user's MCP servers ({begin}) are behind this one."
    fixed = (
        f"{begun} run_python runs a Python program in a sandbox from which the servers' tools are "
        "called as functions: do a whole job in one program, with as many calls as it takes, and "
        f"print only what you need. For example: `print({_sample_call(servers)})`. search_tools "
        "finds tools by what they do."
    )
    named = begin == ", ".join(names) and all(server.alias == server.name for server in servers)
    if named and not any(server.description for server in servers):
        # The list would only repeat the names.
        return fixed
    return f"{fixed}\n{introduce_servers(servers, INSTRUCTIONS_TOKENS - count_tokens(fixed) - 1)}"


def _limits_text(limits: Limits) -> str:
    return (
        f"Time: {limits.timeout:g} s, up to {limits.longest_timeout:g} s with `timeout`, "
        f"without the time that tools take. Memory: {limits.memory_bytes // (1024 * 1024)} MiB. "
        f"Output: {limits.output_tokens:,} tokens; more is kept (`runtime.read_output`)."
    )


def _sample_call(servers: Sequence[ServerEntry]) -> str:
    """Return an example call, of an existing tool if one is known: models imitate examples."""
    every = ((server, entry) for server in servers for entry in server.tools)
    tools = list(islice(every, 50))
    # A read-only one first, in case a model runs the example.
    tools.sort(key=lambda pair: not pair[1].tool.says_it_reads)
    for server, entry in tools:
        call = example_call(server, entry)
        if len(call) <= 100:
            return call
    return f"await mcp_{_sample_alias(servers)}.tool_name(argument=value)"


def _sample_alias(servers: Sequence[ServerEntry]) -> str:
    return servers[0].alias if servers else "server"
