"""The preflight: checks before a run whether a program fits the tools it calls. Pure.

Returns the verdict, and has the rules on names, imports and skills: undefined-name, missing-import,
unknown-module, unknown-skill. A mistake is certain if it fails, or has not the intended effect, in
every possible run: not if an `except` catches it, not if it may not be reached, not if it depends
on data. Only certain mistakes stop a run; all others are notes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.awaits import AwaitRules
from bridge.catalog.program.calls import CallRules
from bridge.catalog.program.certainty import Certainty
from bridge.catalog.program.edits import Edit
from bridge.catalog.program.names import import_for
from bridge.catalog.program.report import Report, did_you_mean, listed, quoted
from bridge.catalog.program.survey import Survey
from bridge.catalog.program.symbols import SymbolResolver
from bridge.catalog.program.tables import (
    BUILTINS,
    FOREIGN,
    HELPERS,
    LEGACY,
    OWN_GLOBALS,
)
from bridge.guest.schema.names import nearest
from bridge.model import Finding, Severity

_BUILTIN_CUTOFF = 0.78
"""Stricter than for other names: among so many builtins one is always a little similar."""

_SDK = (
    "is the MCP SDK's, which is not available or needed: servers are connected; call tools as "
    "`await mcp_<server>.<tool>(...)`"
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The preflight's findings.

    Attributes:
        findings: In the order of the lines.
        omitted: Number of findings left out.
        edits: What fixes all that is certain; empty if that is not known.
    """

    findings: tuple[Finding, ...] = ()
    omitted: int = 0
    edits: tuple[Edit, ...] = ()

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The findings that stop the run."""
        return tuple(found for found in self.findings if found.severity == "deny")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that do not stop the run."""
        return tuple(found for found in self.findings if found.severity == "note")


def check_program(
    survey: Survey,
    servers: Sequence[ServerEntry],
    aliases: Mapping[str, str],
    more_names: bool = False,
    skills: Collection[str] | None = None,
) -> Verdict:
    """Return the preflight's verdict on a program.

    Args:
        survey: The program's survey.
        servers: The servers whose tools are known, as loaded for the run.
        aliases: Name and alias of every configured server.
        more_names: Whether it may use names that it does not bind, as in a session.
        skills: Names of the saved skills; None if unknown.
    """
    report = Report()
    symbols = SymbolResolver(survey, {server.alias: server for server in servers if server.known})
    certainty = Certainty(survey)
    CallRules(survey, symbols, certainty, report).check()
    AwaitRules(survey, symbols, certainty, report).check()
    known = frozenset(aliases.values())
    if not more_names:
        # In a session most such names come from earlier programs; Python reports the others.
        _check_names(survey, certainty, report, known)
    _check_imports(survey, certainty, report, known)
    if skills is not None:
        _check_skills(survey, symbols, certainty, report, skills)
    return Verdict(findings=report.findings(), omitted=report.omitted, edits=report.edits)


def _check_names(
    survey: Survey, certainty: Certainty, report: Report, servers: Collection[str]
) -> None:
    """Report names that nothing binds; `program.servers` reports those that begin with `mcp_`."""
    known = survey.names | BUILTINS | OWN_GLOBALS | survey.given.keys()
    seen: set[str] = set()
    for node, context in survey.each(ast.Name):
        name = node.id
        if name in known or name in seen or not isinstance(node.ctx, ast.Load):
            continue
        if report.exhausted:
            return
        if name.startswith(("__", "mcp_")):
            continue
        severity = certainty.raises(context, "NameError")
        if survey.stars or (name in LEGACY and context.conditional):
            severity = "note"
        if severity == "deny":
            # Report each name once, but again if the first report was not certain.
            seen.add(name)
        missing = import_for(name)
        if missing:
            message = f"{quoted(name)} is not imported; add `{missing}`"
            report.add(node, "missing-import", severity, message)
        else:
            report.add(node, "undefined-name", severity, _undefined(node, survey, servers))


def _undefined(node: ast.Name, survey: Survey, servers: Collection[str]) -> str:
    name = node.id
    dashed = _dashed(node, survey, servers)
    if dashed:
        return f"Write {quoted(f'mcp_{dashed}')}: names use `_` for `-`."
    problem = f"{quoted(name)} is not defined in the program."
    if name in FOREIGN:
        return f"{problem} {FOREIGN[name]}"
    if name in servers:
        return f"{problem} The server's object is `mcp_{name}`."
    near = nearest(name, [*sorted(survey.names), *sorted(OWN_GLOBALS)])
    near = near or nearest(name, sorted(BUILTINS - {"_"}), cutoff=_BUILTIN_CUTOFF)
    if near:
        return f"{problem} Did you mean {quoted(near)}?"
    if any(key is node for one, _ in survey.each(ast.Dict) for key in one.keys):
        return f"{problem} Quote a dict's keys: `{{{name[:64]!r}: ...}}`."
    problem = f"{problem} Every run starts empty: define or import it here"
    if any(call.func is node for call, _ in survey.each(ast.Call)):
        return f"{problem}; tools are called as {quoted(f'await mcp_<server>.{name}(...)')}."
    return f"{problem}."


def _dashed(node: ast.Name, survey: Survey, servers: Collection[str]) -> str:
    """Return "git_forge" for `forge` in `mcp_git-forge.search(...)`; empty if no such server."""
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
    """Report imports of server objects, which need none, and of the MCP SDK's modules."""
    for node, context in survey.each(ast.Import, ast.ImportFrom):
        named = isinstance(node, ast.ImportFrom)
        if named:
            names = [] if node.level else [node.module or ""]
        else:
            names = [item.name for item in node.names]
        for dotted in names:
            severity = certainty.raises(context, "ModuleNotFoundError")
            parts = dotted.split(".")
            if parts[0] == "mcp":
                taken = [item.name for item in node.names] if named and len(parts) == 1 else []
                own = {*_OWN_PARTS, *HELPERS, *(servers if len(parts) == 1 else ())}
                if any(one not in own for one in parts[1:2] or taken):
                    text = f"from {dotted} import ..." if named else f"import {dotted}"
                    report.add(node, "unknown-module", severity, f"{quoted(text)} {_SDK}")


def _check_skills(
    survey: Survey,
    symbols: SymbolResolver,
    certainty: Certainty,
    report: Report,
    skills: Collection[str],
) -> None:
    """Report imports and uses of skills that are not saved."""
    used: list[tuple[ast.AST, str, Severity]] = []
    for node, context in survey.each(ast.ImportFrom):
        if node.module == "skills" and not node.level:
            severity = certainty.raises(context, "ImportError")
            used += [(node, item.name, severity) for item in node.names]
    for node, context in survey.each(ast.Attribute):
        if "skills" in symbols.dotted(node.value, context):
            used.append((node, node.attr, certainty.raises(context, "AttributeError")))
    for node, name, severity in used:
        if name not in skills and name != "*" and not name.startswith("_"):
            hint = did_you_mean(name, sorted(skills)) or f" Saved: {listed(sorted(skills))}."
            message = f"no skill is called {quoted(name)}.{hint}"
            report.add(node, "unknown-skill", severity, message)


_OWN_PARTS = frozenset({"*", "runtime", "servers", "MCPError", "McpError"})
