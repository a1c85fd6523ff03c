"""Lists the servers in `run_python`'s description, as detailed as a budget allows. Pure.

All servers get the fullest level at which all of them fit. The rest of the budget raises single
servers, those with the fewest tools first: one with five hundred tools must not take the signatures
from ten with three. A server with the same tools as an earlier one names that one instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, chain

from bridge.catalog.entries import ServerEntry, mark_twins
from bridge.catalog.prose import first_sentence, one_line
from bridge.catalog.stubs import call_signature
from bridge.text import counted
from bridge.tokens import count_tokens

_HEADING_TOKENS = 24  # Tokens of the longest heading.

_HEADINGS = re.compile(
    r"(?:\s*(?=\S)(?:#[^\n]*|(\*\*|__)[^\n*]+\1|[^\n]*:|[^\n]*\n(?:=+|-+)|={3,}|-{3,})"
    r"[ \t]*(?:\n|$))+"
)
"""Lines that only stand before what a description says: headings, and what ends in a colon."""


class Level(IntEnum):
    BARE = 0  # How many tools a server has.
    COUNTED = 1  # And a sentence on the server.
    NAMES = 2  # Each tool's name.
    SENTENCES = 3  # Each tool's name and a sentence on it.
    ARGUMENTS = 4  # Each tool's signature without the return type.
    SIGNATURES = 5
    SUMMARIES = 6  # Each tool's signature and a sentence on it.


def disclosed(servers: Sequence[ServerEntry], tokens: int) -> str:
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
        text = "\n".join([_heading(servers, levels), *lines])
        excess = count_tokens(text) - tokens
        if excess <= 0:
            return text
        room -= excess
    return _only_aliases(servers, tokens, "`runtime.discovered_servers()`")


def introduced(servers: Sequence[ServerEntry], tokens: int) -> str:
    """Return a line on each server, in at most `tokens` tokens."""
    # A line has at least one token, so many servers cannot fit.
    for chars in (60, 30) if len(servers) < tokens else ():
        lines = (_server_line(server, "", sentence=True, chars=chars) for server in servers)
        text = "\n".join(["Servers, in their own words:", *lines])
        if count_tokens(text) <= tokens:
            return text
    return _only_aliases(servers, tokens, "search_tools lists them")


def outdated(described: Sequence[ServerEntry], now: Sequence[ServerEntry]) -> bool:
    """Return whether a description made from `described` is wrong, not merely less detailed.

    With another description a client pays for its whole conversation again. So tools of servers
    that are asked for the first time count only once all servers have been asked.
    """
    if [(one.name, one.alias) for one in described] != [(one.name, one.alias) for one in now]:
        return True
    news = False
    for before, after in zip(described, now, strict=True):
        same_text = before.description == after.description
        # A server without a configured description gets its own when it is first asked.
        if not same_text and (before.known or before.description):
            return True
        if before.known and before.tools != after.tools:
            return True
        news = news or before.known != after.known or not same_text
    return news and all(server.known for server in now)


def choose_levels(servers: Sequence[ServerEntry], tokens: int) -> list[Level] | None:
    """Return each server's level, or None if not even the lowest fits."""
    known: dict[tuple[int, Level], int] = {}

    def cost(number: int, level: Level, room: int) -> int:
        """Return the tokens of one server at a level; any number above `room` if it is more."""
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
    """Return a lower bound of a server's tokens: what cannot fit is not written."""
    tools = len(server.tools) if level >= Level.NAMES else 0
    return 1 + (2 if level == Level.NAMES else 4) * tools


def _heading(servers: Sequence[ServerEntry], levels: Sequence[Level]) -> str:
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
    """Return for example "mcp_git_hub = git-hub: Issues and pull requests. (12 tools)"."""
    text = f"mcp_{server.alias}"
    if not sentence:
        return f"{text}{note}"
    name = one_line(server.name, 60)
    text = text if name == server.alias else f"{text} = {name}"
    begun = server.description[:4_000]
    told = begun[match.end() :] if (match := _HEADINGS.match(begun)) else begun
    summary = first_sentence(told.strip() or begun, chars)
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
