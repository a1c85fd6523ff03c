"""Turns the names of servers and tools into Python identifiers, their aliases.

An alias is made in two steps. First each name gets a base:

1. accents and compatibility forms are dropped ("Café" is "cafe"), letters lowered;
2. every run of characters outside `[a-z0-9_]` becomes one underscore;
3. underscores at both ends are removed, so no alias is private or a dunder;
4. nothing left: "server" or "tool"; a digit in front: an underscore before it;
5. longer than `MAX_ALIAS_CHARS`: cut;
6. a keyword, a soft keyword or a name the guest needs itself: an underscore after it.

Then collisions are resolved over the whole set, so the order of the names does not matter. Names
are sorted by base, then by whether the name equals its base, then by code point. The first name of
each base gets it; the others get `_2`, `_3` and so on, skipping other names' bases. The same set of
names therefore has the same aliases in every run.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable, Sequence

MAX_ALIAS_CHARS = 64
"""Longest base: servers limit tool names to this, and longer ones only cost the model tokens."""

RESERVED_SERVER_ALIASES = frozenset({"servers"})  # `mcp_servers` is the mapping of all servers.

RESERVED_TOOL_ALIASES = frozenset({"list_tools"})
"""Methods of every server object; a tool of that name becomes `list_tools_`."""

_OTHER = re.compile(r"[^a-z0-9_]+")

# The guest's Python may have more soft keywords than this interpreter.
_WORDS = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | {"match", "case", "type"}


def server_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each server name's alias, in the order given; `mcp_<alias>` is what programs use."""
    return _aliases(names, default="server", reserved=RESERVED_SERVER_ALIASES)


def tool_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each tool name's alias within its server, in the order given."""
    return _aliases(names, default="tool", reserved=RESERVED_TOOL_ALIASES)


def _aliases(names: Iterable[str], *, default: str, reserved: frozenset[str]) -> dict[str, str]:
    unique = dict.fromkeys(names)
    bases = {name: _base(name, default, reserved) for name in unique}
    taken = set(bases.values())
    first: set[str] = set()
    counters: dict[str, int] = {}
    aliases: dict[str, str] = {}
    for name in sorted(unique, key=lambda name: (bases[name], name != bases[name], name)):
        base = bases[name]
        if base not in first:
            first.add(base)
            aliases[name] = base
            continue
        number = counters.get(base, 2)
        while f"{base}_{number}" in taken:
            number += 1
        counters[base] = number + 1
        aliases[name] = f"{base}_{number}"
        taken.add(aliases[name])
    return {name: aliases[name] for name in unique}


def _base(name: str, default: str, reserved: frozenset[str]) -> str:
    plain = name[:1024]  # A server chooses the name.
    if not plain.isascii():
        taken_apart = unicodedata.normalize("NFKD", plain)
        plain = "".join(char for char in taken_apart if not unicodedata.combining(char))
    base = _OTHER.sub("_", plain.lower()).strip("_") or default
    if base[0].isdigit():
        base = f"_{base}"
    base = base[:MAX_ALIAS_CHARS].rstrip("_")
    if base in _WORDS or base in reserved:
        base = f"{base}_"
    return base
