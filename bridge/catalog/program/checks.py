"""The preflight: whether a program fits the tools it calls, read before it runs. Pure.

Owns the verdict on a program: what is certain to go wrong, and what may; and the names and imports
that there are not. Certain is what fails, or does not do what is meant, in whatever way the program
is run: not what some `except` around it catches, not what is never reached, not what only other
data would tell. Only that stops a run; everything else is a note. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.awaits import Awaits
from bridge.catalog.program.calls import Calls
from bridge.catalog.program.certainty import Certainty
from bridge.catalog.program.meaning import Meanings
from bridge.catalog.program.report import Report, did_you_mean, listed, nearest, quoted
from bridge.catalog.program.survey import Survey
from bridge.catalog.program.tables import (
    BUILTINS,
    FOREIGN,
    LEGACY,
    MEMBERS,
    OWN_GLOBALS,
    SHORT_NAMES,
    STDLIB,
)
from bridge.model import Finding, Severity

_BUILTIN_CUTOFF = 0.78
"""There are so many builtins that some look a little like anything."""

_SDK = (
    "is the MCP SDK's, which is neither here nor needed: the servers are connected; call tools as "
    "`await mcp_<server>.<tool>(...)`"
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found.

    Attributes:
        findings: In the order of the lines.
        omitted: How many more there were.
    """

    findings: tuple[Finding, ...] = ()
    omitted: int = 0

    @property
    def certain(self) -> tuple[Finding, ...]:
        """What stops the run."""
        return tuple(found for found in self.findings if found.severity == "deny")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What does not."""
        return tuple(found for found in self.findings if found.severity == "note")


def check_program(
    survey: Survey,
    servers: Sequence[ServerEntry],
    aliases: Mapping[str, str],
    more_names: bool = False,
    skills: Collection[str] | None = None,
) -> Verdict:
    """Return what is wrong with a program.

    Args:
        survey: Of the program, from whoever read it.
        servers: Those whose tools are known, as the run would have them.
        aliases: Name and alias of every server there is.
        more_names: Whether it may use names that it does not bind, as those of a session.
        skills: Names of those that are saved; None if that is not known.
    """
    report = Report()
    meanings = Meanings(survey, {server.alias: server for server in servers if server.known})
    certainty = Certainty(survey)
    Calls(survey, meanings, certainty, report).check()
    Awaits(survey, meanings, certainty, report).check()
    known = frozenset(aliases.values())
    if not more_names:
        # In a session most are an earlier program's; of the others the interpreter says enough.
        _check_names(survey, certainty, report, known)
    _check_imports(survey, certainty, report, known)
    if skills is not None:
        _check_skills(survey, meanings, certainty, report, skills)
    return Verdict(findings=report.findings(), omitted=report.omitted)


def _check_names(
    survey: Survey, certainty: Certainty, report: Report, servers: Collection[str]
) -> None:
    """Report the names that nothing binds; what begins with `mcp_` is reported before."""
    known = survey.names | BUILTINS | OWN_GLOBALS
    seen: set[str] = set()
    for node, place in survey.each(ast.Name):
        name = node.id
        if name in known or name in seen or not isinstance(node.ctx, ast.Load):
            continue
        if report.exhausted:
            return
        if name.startswith(("__", "mcp_")):
            continue
        severity = certainty.raises(place, "NameError")
        if survey.stars or (name in LEGACY and place.conditional):
            severity = "note"
        if severity == "deny":
            # Once is enough, unless the first was not certain.
            seen.add(name)
        missing = _import_for(name)
        if missing:
            message = f"{quoted(name)} is not imported; add `{missing}`"
            report.add(node, "missing-import", severity, message)
        else:
            report.add(node, "undefined-name", severity, _undefined(node, survey, servers))


def _import_for(name: str) -> str:
    """Return the import that a well-known name lacks; empty for any other."""
    if name in MEMBERS and name != "pprint":
        return f"from {MEMBERS[name]} import {name}"
    if name in SHORT_NAMES:
        return f"import {SHORT_NAMES[name]}"
    if name in STDLIB and not name.startswith("_") and name not in ("this", "antigravity"):
        return f"import {name}"
    return ""


def _undefined(node: ast.Name, survey: Survey, servers: Collection[str]) -> str:
    name = node.id
    dashed = _dashed(node, survey, servers)
    if dashed:
        return f"Write {quoted(f'mcp_{dashed}')}: names have `_` for `-`."
    told = f"{quoted(name)} is defined nowhere in the program."
    if name in FOREIGN:
        return f"{told} {FOREIGN[name]}"
    if name in servers:
        return f"{told} The server's object is `mcp_{name}`."
    near = nearest(name, [*sorted(survey.names), *sorted(OWN_GLOBALS)])
    near = near or nearest(name, sorted(BUILTINS - {"_"}), cutoff=_BUILTIN_CUTOFF)
    if near:
        return f"{told} Did you mean {quoted(near)}?"
    if any(key is node for one, _ in survey.each(ast.Dict) for key in one.keys):
        return f"{told} Keys of a dict stand in quotes: `{{{name[:64]!r}: ...}}`."
    told = f"{told} Every run starts anew: define or import it here"
    if any(call.func is node for call, _ in survey.each(ast.Call)):
        return f"{told}; tools are called as {quoted(f'await mcp_<server>.{name}(...)')}."
    return f"{told}."


def _dashed(node: ast.Name, survey: Survey, servers: Collection[str]) -> str:
    """Return the server that `forge` in `mcp_git-forge.search(...)` belongs to, if it does."""
    for both, _ in survey.each(ast.BinOp):
        last = both.right
        while isinstance(last, ast.Call | ast.Attribute):
            last = last.func if isinstance(last, ast.Call) else last.value
        first = both.left.value if isinstance(both.left, ast.Await) else both.left
        if last is node and isinstance(both.op, ast.Sub) and isinstance(first, ast.Name):
            alias = f"{first.id}_{node.id}".removeprefix("mcp_")
            return alias if alias in servers else ""
    return ""


def _check_imports(
    survey: Survey, certainty: Certainty, report: Report, servers: Collection[str]
) -> None:
    """Report imports of what is there already, and of the MCP SDK's modules."""
    for node, place in survey.each(ast.Import, ast.ImportFrom):
        named = isinstance(node, ast.ImportFrom)
        if named:
            names = [] if node.level else [node.module or ""]
        else:
            names = [item.name for item in node.names]
        for dotted in names:
            severity = certainty.raises(place, "ModuleNotFoundError")
            parts = dotted.split(".")
            alias = parts[0].removeprefix("mcp_")
            if parts[0] != alias and alias in servers:
                other = f"from mcp.servers{f'.{alias} import ...' if named else f' import {alias}'}"
                message = (
                    f"{quoted(parts[0])} needs no import: it is there already; leave the line out, "
                    f"or write `{other}`"
                )
                report.add(node, "unknown-module", severity, message)
            elif parts[0] == "mcp":
                taken = [item.name for item in node.names] if named and len(parts) == 1 else []
                foreign = [one for one in (parts[1:2] or taken) if one not in _OWN_PARTS]
                if foreign:
                    text = f"from {dotted} import ..." if named else f"import {dotted}"
                    report.add(node, "unknown-module", severity, f"{quoted(text)} {_SDK}")


def _check_skills(
    survey: Survey,
    meanings: Meanings,
    certainty: Certainty,
    report: Report,
    skills: Collection[str],
) -> None:
    """Report imports and uses of skills that nobody has saved."""
    used: list[tuple[ast.AST, str, Severity]] = []
    for node, place in survey.each(ast.ImportFrom):
        if node.module == "skills" and not node.level:
            severity = certainty.raises(place, "ImportError")
            used += [(node, item.name, severity) for item in node.names]
    for node, place in survey.each(ast.Attribute):
        if "skills" in meanings.dotted(node.value, place):
            used.append((node, node.attr, certainty.raises(place, "AttributeError")))
    for node, name, severity in used:
        if name not in skills and name != "*" and not name.startswith("_"):
            told = did_you_mean(name, sorted(skills)) or f" Saved: {listed(sorted(skills))}."
            message = f"no skill is called {quoted(name)}.{told}"
            report.add(node, "unknown-skill", severity, message)


_OWN_PARTS = frozenset({"*", "runtime", "servers", "MCPError"})
