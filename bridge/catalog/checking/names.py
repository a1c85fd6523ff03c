"""Names that nothing in the program binds: forgotten imports, typing mistakes, other languages."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cached_property

from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.report import Report, nearest, quoted
from bridge.catalog.checking.survey import Survey
from bridge.catalog.checking.tables import (
    BUILTINS,
    FOREIGN,
    LEGACY,
    MEMBERS,
    OWN_GLOBALS,
    SHORT_NAMES,
    STDLIB,
)

_BUILTIN_CUTOFF = 0.78
"""There are so many builtins that some look a little like anything."""

RULE = "undefined-name"
IMPORT_RULE = "missing-import"


def check_names(
    survey: Survey, certainty: Certainty, report: Report, servers: Collection[str]
) -> None:
    """Report the names that do not exist.

    Args:
        servers: Aliases of all servers there are; what else begins with `mcp_` is reported before.
    """
    known = survey.names | BUILTINS | OWN_GLOBALS
    seen: set[str] = set()
    uses = _Uses(survey, servers)
    for node, place in survey.each(ast.Name):
        assert isinstance(node, ast.Name)
        name = node.id
        if name in known or name in seen or not isinstance(node.ctx, ast.Load):
            continue
        if report.exhausted:
            return
        if name.startswith("__") or name.startswith("mcp_"):
            continue
        severity = certainty.raises(place, "NameError")
        if survey.star or (name in LEGACY and place.conditional):
            severity = "note"
        if severity == "deny":
            # Once is enough, unless the first was not certain.
            seen.add(name)
        missing = import_for(name)
        if missing:
            message = f"{quoted(name)} is not imported; add `{missing}`"
            report.add(node, IMPORT_RULE, severity, message)
        else:
            said = uses.dashed.get(id(node)) or _undefined(name, survey, servers, uses)
            report.add(node, RULE, severity, said)


def import_for(name: str) -> str:
    """Return the import that a well-known name lacks; empty for any other."""
    if name in MEMBERS and name != "pprint":
        return f"from {MEMBERS[name]} import {name}"
    if name in SHORT_NAMES:
        return f"import {SHORT_NAMES[name]}"
    if name in STDLIB and not name.startswith("_") and name not in ("this", "antigravity"):
        return f"import {name}"
    return ""


def _undefined(name: str, survey: Survey, servers: Collection[str], uses: _Uses) -> str:
    told = f"{quoted(name)} is defined nowhere in the program."
    if name in FOREIGN:
        return f"{told} {FOREIGN[name]}"
    if name in servers:
        return f"{told} The server's object is `mcp_{name}`."
    near = nearest(name, [*sorted(survey.names), *sorted(OWN_GLOBALS)])
    near = near or nearest(name, sorted(BUILTINS - {"_"}), cutoff=_BUILTIN_CUTOFF)
    if near:
        return f"{told} Did you mean {quoted(near)}?"
    if name in uses.keys:
        return f"{told} Keys of a dict stand in quotes: `{{{name[:64]!r}: ...}}`."
    told = f"{told} Every run starts anew: define or import it here"
    if name in uses.called:
        return f"{told}; tools are called as {quoted(f'await mcp_<server>.{name}(...)')}."
    return f"{told}."


class _Uses:
    """How names stand in a program. Programs without mistakes never ask."""

    def __init__(self, survey: Survey, servers: Collection[str]) -> None:
        self._survey = survey
        self._servers = servers

    @cached_property
    def keys(self) -> frozenset[str]:
        """Names that are keys of a dict, as JavaScript has them."""
        dicts = (node for node, _ in self._survey.each(ast.Dict) if isinstance(node, ast.Dict))
        return frozenset(key.id for node in dicts for key in node.keys if isinstance(key, ast.Name))

    @cached_property
    def called(self) -> frozenset[str]:
        """Names that are called."""
        calls = (node for node, _ in self._survey.each(ast.Call) if isinstance(node, ast.Call))
        return frozenset(node.func.id for node in calls if isinstance(node.func, ast.Name))

    @cached_property
    def dashed(self) -> dict[int, str]:
        """What to say of `forge` in `mcp_git-forge.search(...)`, by node."""
        found: dict[int, str] = {}
        for node, _ in self._survey.each(ast.BinOp):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
                continue
            last: ast.expr = node.right
            while isinstance(last, ast.Call | ast.Attribute):
                last = last.func if isinstance(last, ast.Call) else last.value
            first = node.left.value if isinstance(node.left, ast.Await) else node.left
            if isinstance(first, ast.Name) and isinstance(last, ast.Name):
                alias = f"{first.id}_{last.id}".removeprefix("mcp_")
                if alias in self._servers:
                    found[id(last)] = f"Write {quoted(f'mcp_{alias}')}: names have `_` for `-`."
        return found
