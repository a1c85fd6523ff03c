"""The preflight: checks before a run whether a program fits the tools it calls. Pure.

Returns the verdict, and has the rule on undefined names. A mistake is certain if it fails, or lacks
the intended effect, in every possible run. An `except`, a branch or dependence on data makes it
uncertain. Only certain mistakes stop a run; all others are notes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.advice import quoted, undefined_name
from bridge.catalog.program.awaits import AwaitRules
from bridge.catalog.program.calls import CallRules
from bridge.catalog.program.edits import Edit
from bridge.catalog.program.report import Report, Verdict
from bridge.catalog.program.survey import Survey
from bridge.catalog.program.symbols import SymbolResolver
from bridge.catalog.program.tables import BUILTINS, OWN_GLOBALS
from bridge.model import Finding


def check_program(
    survey: Survey,
    servers: Sequence[ServerEntry],
    aliases: Mapping[str, str],
    more_names: bool = False,
) -> Verdict:
    """Return the preflight's verdict on a program.

    Args:
        survey: The program's survey.
        servers: The servers whose tools are known, as loaded for the run.
        aliases: Name and alias of every configured server.
        more_names: Whether it may use names that it does not bind, as in a session.
    """
    report = Report()
    symbols = SymbolResolver(survey, {server.alias: server for server in servers if server.known})
    CallRules(survey, symbols, report).check()
    AwaitRules(survey, symbols, report, in_session=more_names).check()
    known = frozenset(aliases.values())
    if not more_names:
        # In a session, earlier programs define most such names; Python reports the others.
        _check_names(survey, report, known)
        _check_uncalled(survey, report)
    return report.verdict()


def _check_names(survey: Survey, report: Report, servers: Collection[str]) -> None:
    """Report names that nothing binds; `server_references` reports those with `mcp_`."""
    known = survey.names | survey.made | BUILTINS | OWN_GLOBALS | survey.given.keys()
    last = survey.tree.body[-1] if survey.tree.body else None
    answer = getattr(getattr(last, "value", None), "func", None)
    seen: set[str] = set()
    for node, context in survey.each(ast.Name):
        name = node.id
        if name in known or name in seen or not isinstance(node.ctx, ast.Load):
            continue
        if name.startswith(("__", "mcp_")):
            continue
        severity = survey.raises(context, "NameError")
        if survey.stars:
            severity = "note"
        if severity == "deny":
            # Report each name once, but again if the first report was not certain.
            seen.add(name)
        message = partial(undefined_name, node, survey, servers)
        is_answer = name == "final_answer" and node is answer
        edits = (Edit("answer", node),) if is_answer else ()
        report.add(node, "undefined-name", severity, message, edits)


def _check_uncalled(survey: Survey, report: Report) -> None:
    """Report a `main`, or the last function of a program of nothing else, that nothing calls."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    parts = (*functions, ast.ClassDef, ast.Import, ast.ImportFrom)
    idle = all(isinstance(node, parts) for node in survey.tree.body)
    own = [node for node in survey.tree.body if isinstance(node, functions)]
    for node in own:
        if node.name not in survey.read_names and (node.name == "main" or idle):
            call, given = "await " if isinstance(node, ast.AsyncFunctionDef) else "", node.args
            needs = len(given.posonlyargs + given.args) > len(given.defaults)
            shown = f"{call}{node.name}({'...' if needs or None in given.kw_defaults else ''})"
            message = (
                f"{quoted(node.name)} is defined and never called; end the program with `{shown}`"
            )
            report.add(node, "not-called", "note", message)


def find_lost_value(survey: Survey) -> tuple[Finding, ...]:
    """Return a note on the last line of a last loop, whose value goes nowhere."""
    last = survey.tree.body[-1] if survey.tree.body else None
    loops = False
    while isinstance(last, ast.For | ast.AsyncFor | ast.While | ast.If):
        loops = loops or not isinstance(last, ast.If)
        last = last.body[-1]
    report = Report()
    value = last.value if isinstance(last, ast.Assign | ast.AugAssign | ast.Expr) else None
    shows = isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("print", "display")
    if last and value and not shows and loops:
        message = "what this line makes is not shown; print it, or end with its name"
        report.add(last, "lost-value", "note", message)
    return report.verdict().findings
