"""The spelling of servers, tools and parameters in programs, and similarity of names."""

from __future__ import annotations

import re
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Mapping, Set

NAME_CHARS = 80  # Characters of a name that are compared.

USUAL_CUTOFF = 0.65  # From this ratio on, two names look alike to a reader.

PARAMETER_NAMES = {
    **dict.fromkeys(("server_name", "mcp_server"), "server"),
    **dict.fromkeys(("tool_name", "name"), "tool"),
    **dict.fromkeys(("args", "params", "parameters", "kwargs", "input"), "arguments"),
}
"""Other names that programs use for the parameters of `call_tool`."""


def normalize_spelling(name: str) -> str:
    """Return a name without what programs spell differently: `mcp__a-b__c` is `a_b_c`."""
    bare = re.sub(r"^(?:(?i:mcp|tools|servers)[_./:]+|mcp(?=[A-Z]))", "", name)
    return re.sub(r"[\W_]+", "_", bare.lower())


def letters(name: str) -> str:
    """Return a name's spelling without word separators: `get-issue` is `getissue`."""
    return normalize_spelling(name).replace("_", "")


def alike(name: str, names: Iterable[str], owner: str = "") -> str:
    """Return the only name that differs from `name` in case and separators, or an empty text."""
    wanted = own_letters(name, owner)
    same = [one for one in names if own_letters(one, owner) == wanted]
    return same[0] if len(same) == 1 and wanted else ""


def own_letters(name: str, owner: str) -> str:
    """Return the letters of a name that may begin with its owner's name."""
    prefix = letters(owner)
    return letters(name).removeprefix(prefix) or prefix


def split_target(target: Dict[str, Any], named: Mapping[str, Any]) -> Dict[str, Any]:
    """Complete the parameters of a `call_tool` from its keywords; return the tool's own arguments.

    A keyword that names a parameter already given belongs to the tool.
    """
    own = {}
    for name, value in named.items():
        slot = PARAMETER_NAMES.get(name, name)
        free = slot in target and target[slot] is None
        if free and (slot != "arguments" or isinstance(value, dict)):
            target[slot] = value
        else:
            own[name] = value
    return own


def nearest(name: str, names: Iterable[str], cutoff: float = USUAL_CUTOFF) -> str:
    """Return the name most similar to `name`; empty if none is similar enough.

    Above the default cutoff, names that only share a part do not count.
    """
    by_lower: Dict[str, str] = {}
    for other in islice(names, 1_000):
        by_lower.setdefault(_plain(other), other)
    # Imported by programs with mistakes; it takes milliseconds.
    import difflib
    import heapq

    wanted = _plain(name)
    pairs = _pairs(wanted)

    # `difflib` takes fifty times as long as counting shared pairs of letters.
    def share(other: str) -> float:
        own = _pairs(other)
        return len(pairs & own) / (len(pairs) + len(own) + 1)

    likely = heapq.nlargest(12, by_lower, key=share)
    for one in [one for one in likely if one.count("_") == wanted.count("_") > 0]:
        if not all(map(difflib.get_close_matches, wanted.split("_"), zip(one.split("_")))):
            likely.remove(one)  # `update_issue` is no `create_issue`
    close = difflib.get_close_matches(wanted, likely, n=1, cutoff=cutoff)
    if not close and cutoff <= USUAL_CUTOFF:
        # `search` for `search_issues`. A single letter is part of many names.
        bare = wanted.replace("_", "")
        close = [one for one in likely if one.replace("_", "") == bare]
        if not close and len(bare) > 3:
            close = [o for o in likely if bare in o or (len(o) > 2 and o in wanted)][:1]
    return by_lower[close[0]] if close else ""


def _plain(name: str) -> str:
    return name[:NAME_CHARS].lower().replace("-", "_")


def _pairs(name: str) -> Set[str]:
    return {name[start : start + 2] for start in range(len(name))}
