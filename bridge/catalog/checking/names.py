"""Names that nothing in the program binds: forgotten imports, typing mistakes, other languages."""

from __future__ import annotations

import ast
from collections.abc import Collection

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
            report.add(node, RULE, severity, _undefined(name, survey, servers))


def import_for(name: str) -> str:
    """Return the import that a well-known name lacks; empty for any other."""
    if name in MEMBERS and name != "pprint":
        return f"from {MEMBERS[name]} import {name}"
    if name in SHORT_NAMES:
        return f"import {SHORT_NAMES[name]}"
    if name in STDLIB and not name.startswith("_") and name not in ("this", "antigravity"):
        return f"import {name}"
    return ""


def _undefined(name: str, survey: Survey, servers: Collection[str]) -> str:
    told = f"{quoted(name)} is defined nowhere in the program."
    if name in FOREIGN:
        return f"{told} {FOREIGN[name]}"
    if name in servers:
        return f"{told} The server's object is `mcp_{name}`."
    near = nearest(name, [*sorted(survey.names), *OWN_GLOBALS, *sorted(BUILTINS - {"_"})])
    if near:
        return f"{told} Did you mean {quoted(near)}?"
    return f"{told} Every run starts anew: define or import it here."
