"""How much is said of the servers in the description of `run_python`: as much as a budget holds.

Owns the levels and the choice among them. The same servers and the same budget always give the same
text: nothing depends on time, on what was asked for, or on who looks. Pure.

From the most to the least that is said of a server:

    SUMMARIES   each tool's signature and a sentence on it
    SIGNATURES  each tool's signature
    ARGUMENTS   each tool's arguments, and not what it returns
    SENTENCES   each tool's name and a sentence on it
    NAMES       each tool's name
    COUNTED     how many tools there are, and a sentence on the server
    BARE        how many tools there are

A server with the same tools as an earlier one says so instead. All servers get the fullest level at
which all of them fit. What is left over then raises servers above it, those with the fewest tools
first: one server with five hundred tools must not take the signatures away from ten that have
three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain

from bridge.catalog.entries import ServerEntry, ToolEntry, told_once
from bridge.catalog.prose import first_sentence, one_line
from bridge.catalog.stubs import call_signature
from bridge.tokens import count_tokens

MAX_ATTEMPTS = 4
"""Lines are counted one by one, and together come to a little more or less; then it is tried again
with that much less room."""

_HEADING_TOKENS = 24
"""Of the longest heading."""

_SENTENCE_CHARS = 80
_SERVER_CHARS = 100
_FEW_WORDS_CHARS = (60, 30)
_NAME_CHARS = 60
_TOKENS_PER_NAME = 2
_TOKENS_PER_TOOL_LINE = 4
"""At least. What cannot fit is so not written out first to see that it does not."""

_UNASKED = " (search for its tools)"


class Level(IntEnum):
    """How much is said of one server."""

    BARE = 0
    COUNTED = 1
    NAMES = 2
    SENTENCES = 3
    ARGUMENTS = 4
    SIGNATURES = 5
    SUMMARIES = 6


def disclosed(servers: Sequence[ServerEntry], tokens: int) -> str:
    """Return the servers and what is said of their tools, in at most `tokens` tokens.

    If not even their aliases fit, those that do, and how many more there are.
    """
    if not servers:
        return "No MCP servers are configured; programs can still compute."
    room, servers = tokens, told_once(servers)
    for _ in range(MAX_ATTEMPTS):
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
    """Return the servers in a few words each, in at most `tokens` tokens.

    If that does not fit, only their aliases; if not all of those do, how many more there are.
    """
    # A line of each is at least one token: most often it is plain that they do not fit.
    for chars in _FEW_WORDS_CHARS if len(servers) < tokens else ():
        lines = (_server_line(server, "", sentence=True, chars=chars) for server in servers)
        text = "\n".join(["Servers, in their own words:", *lines])
        if count_tokens(text) <= tokens:
            return text
    return _only_aliases(servers, tokens, "search_tools lists them")


def outdated(told: Sequence[ServerEntry], now: Sequence[ServerEntry]) -> bool:
    """Whether a description made from `told` has become wrong, and not only less than it could be.

    A client that is given another description pays for its whole conversation anew. So what is
    learnt of servers that had not been asked before, one after the other as they are used, changes
    nothing until all of them have been: once then, and with the listings that are kept on disk
    never again. A server that came, went, or changed its tools changes it at once.
    """
    if [(one.name, one.alias) for one in told] != [(one.name, one.alias) for one in now]:
        return True
    news = False
    for before, after in zip(told, now, strict=True):
        described = before.description == after.description
        # One that the configuration says nothing of introduces itself when it is first asked.
        if not described and (before.known or before.description):
            return True
        if before.known and before.tools != after.tools:
            return True
        news = news or before.known != after.known or not described
    return news and all(server.known for server in now)


def choose_levels(servers: Sequence[ServerEntry], tokens: int) -> list[Level] | None:
    """Return each server's level, or None if there is no room even for the least."""
    costs = _Costs(servers)
    for base in sorted(Level, reverse=True):
        total = costs.total(base, tokens)
        if total is not None:
            break
    else:
        return None
    levels = [base] * len(servers)
    left = tokens - total
    smallest_first = sorted(range(len(servers)), key=lambda number: len(servers[number].tools))
    for level in sorted(Level, reverse=True):
        if level <= base:
            break
        for number in smallest_first:
            if levels[number] > base:
                continue
            spent = costs.of(number, base)
            cost = costs.bounded(number, level, left + spent)
            if cost is None:
                # Those that follow are larger; to try them all would take longest where it is
                # of least use.
                break
            levels[number] = level
            left -= cost - spent
    return levels


class _Costs:
    """What servers' lines cost, none written out further than there is room for it."""

    def __init__(self, servers: Sequence[ServerEntry]) -> None:
        self._servers = servers
        self._found: dict[tuple[int, Level], int] = {}

    def of(self, number: int, level: Level) -> int:
        """Return a cost found before."""
        return self._found[number, level]

    def total(self, level: Level, room: int) -> int | None:
        """Return what all servers cost at a level; None if that is more than `room`."""
        if sum(_least(server, level) for server in self._servers) > room:
            return None
        total = 0
        for number in range(len(self._servers)):
            cost = self.bounded(number, level, room - total)
            if cost is None:
                return None
            total += cost
        return total

    def bounded(self, number: int, level: Level, room: int) -> int | None:
        """Return what one server costs at a level; None if that is more than `room`."""
        found = self._found.get((number, level))
        if found is None:
            server = self._servers[number]
            if _least(server, level) > room:
                return None
            found = 0
            for line in _lines(server, level):
                found += count_tokens(line) + 1
                if found > room:
                    return None
            self._found[number, level] = found
        return found if found <= room else None


def _least(server: ServerEntry, level: Level) -> int:
    """Return what a server costs at least."""
    if level <= Level.COUNTED:
        return 1
    each = _TOKENS_PER_NAME if level == Level.NAMES else _TOKENS_PER_TOOL_LINE
    return each * len(server.tools)


def _heading(servers: Sequence[ServerEntry], levels: Sequence[Level]) -> str:
    signed = [level >= Level.ARGUMENTS for level in levels]
    whole = all(level >= Level.SIGNATURES for level in levels)
    listed = (
        level >= Level.NAMES and server.known for server, level in zip(servers, levels, strict=True)
    )
    if not any(listed):
        return "Servers (search for their tools):"
    optional = "optional arguments after `*`" if any(signed) else ""
    missing = "" if whole else "search for what is not shown"
    return f"Servers and their tools ({'; '.join(filter(None, (optional, missing)))}):"


def _lines(server: ServerEntry, level: Level) -> Iterator[str]:
    """Yield a server's lines."""
    if server.twin:
        yield _server_line(
            server, f" (same tools as mcp_{server.twin})", sentence=level > Level.BARE
        )
        return
    if level <= Level.COUNTED:
        yield _server_line(server, _count(server), sentence=level == Level.COUNTED)
        return
    yield _server_line(server, "" if server.known else _UNASKED, sentence=True)
    if level == Level.NAMES:
        if server.tools:
            yield f"  {', '.join(entry.alias for entry in server.tools)}"
        return
    for entry in server.tools:
        yield _tool_line(server, entry, level)


def _server_line(
    server: ServerEntry, note: str, *, sentence: bool, chars: int = _SERVER_CHARS
) -> str:
    """Return for example "mcp_git_hub = git-hub: Issues and pull requests. (12 tools)"."""
    text = f"mcp_{server.alias}"
    if not sentence:
        return f"{text}{note}"
    name = one_line(server.name, _NAME_CHARS)
    text = text if name == server.alias else f"{text} = {name}"
    summary = first_sentence(server.description, chars)
    return f"{text}: {summary}{note}" if summary else f"{text}{note}"


def _count(server: ServerEntry) -> str:
    if not server.known:
        return ""
    return f" ({len(server.tools)} tool{'' if len(server.tools) == 1 else 's'})"


def _tool_line(server: ServerEntry, entry: ToolEntry, level: Level) -> str:
    summary = ""
    if level in (Level.SENTENCES, Level.SUMMARIES):
        summary = first_sentence(entry.tool.description, _SENTENCE_CHARS)
    if level == Level.SENTENCES:
        return f"  {entry.alias}: {summary}" if summary else f"  {entry.alias}"
    call = call_signature(server.alias, entry, returns=level != Level.ARGUMENTS)
    call = call.removeprefix(f"mcp_{server.alias}.")
    return f"  .{call}  # {summary}" if summary else f"  .{call}"


def _only_aliases(servers: Sequence[ServerEntry], tokens: int, others: str) -> str:
    heading = f"{len(servers):,} servers (search for their tools): "
    rest = f"{{:,}} more: {others}"
    room = tokens - count_tokens(heading) - count_tokens(f" and {rest.format(len(servers))}.") - 1
    kept = list(_that_fit((f"mcp_{server.alias}" for server in servers), room))
    left_out = len(servers) - len(kept)
    if not left_out:
        return f"{heading}{', '.join(kept)}."
    more = rest.format(left_out)
    return f"{heading}{', '.join(kept)} and {more}." if kept else f"{heading}{more}."


def _that_fit(names: Iterable[str], room: int) -> Iterator[str]:
    for name in names:
        room -= count_tokens(name) + 1
        if room < 0:
            return
        yield name
