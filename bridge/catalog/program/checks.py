"""The preflight: checks before a run whether a program fits the tools it calls. Pure.

Returns the verdict, and has the rule on undefined names. A mistake is certain if it fails, or lacks
the intended effect, in every possible run. An `except`, a branch or dependence on data makes it
uncertain. Only certain mistakes stop a run; all others are notes.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.advice import (
    no_helper,
    no_tool,
    quoted,
    tools_of,
    undefined_name,
    wrong_argument,
)
from bridge.catalog.program.awaits import AwaitRules
from bridge.catalog.program.expected_calls import CallReader, CallText, helper_parameters
from bridge.catalog.program.report import Edit, Report, Verdict
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import Kind, Symbol, SymbolResolver
from bridge.catalog.program.tables import BUILTINS, BY_NAME, OWN_GLOBALS
from bridge.catalog.stubs import call_signature
from bridge.guest.schema.binding import Parameters
from bridge.model import Finding, Severity


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


_INTROSPECTIVE = frozenset(
    """
    dir getattr hasattr help inspect list_tools list_tools_sync query_tool_docs
    query_tool_docs_sync describe_server search_tool_docs search_tool_docs_sync TOOLS TOOL_MAP
    """.split()  # noqa: SIM905 - as words they can be read
)
"""With these names a program can use only the tools that exist."""


class CallRules:
    """Checks a program's uses and calls of tools and helpers."""

    def __init__(self, survey: Survey, symbols: SymbolResolver, report: Report) -> None:
        self._survey = survey
        self._symbols = symbols
        self._report = report
        self._reader = CallReader(survey, symbols)
        # Only hostile schemas take so long; the guest checks all values again before each call.
        self._seconds_left = 0.2
        self._called: dict[str, tuple[int, int]] = {}  # Where each server is called first.
        names = [node.id for node, _ in survey.each(ast.Name)]
        names += [node.attr for node, _ in survey.each(ast.Attribute)]
        self._introspects = not _INTROSPECTIVE.isdisjoint(names)

    def check(self) -> None:
        awaited = {id(node.value) for node, _ in self._survey.each(ast.Await)}
        for node, context in self._survey.each(ast.Call):
            self._call(node, context, later=id(node) not in awaited)
        for kind, raised in ((ast.Attribute, "AttributeError"), (ast.Subscript, "MissingKeyError")):
            for node, context in self._survey.each(kind):
                if isinstance(node.ctx, ast.Load):
                    self._name(node, context, self._symbols.of(node, context), raised)
        for node, context in self._survey.each(ast.ImportFrom):
            for item in node.names if node.module and not node.level else ():
                if item.name != "*":
                    symbol = self._symbols.imported(f"{node.module}.{item.name}")
                    self._name(node, context, symbol, "ImportError")

    def _name(
        self, node: ast.expr | ast.stmt, context: Context, symbol: Symbol | None, raised: str
    ) -> None:
        if symbol is None or symbol.kind not in (Kind.NO_TOOL, Kind.NO_HELPER):
            return
        name, server = symbol.name, symbol.server
        severity = self._survey.raises(context, raised)
        if server is None:
            self._report.add(node, "unknown-helper", severity, partial(no_helper, name))
            return
        looked_for = name in self._survey.words and raised != "MissingKeyError"
        if looked_for or self._introspects or self._may_appear(server, node):
            # The program tests whether the tool exists, or adds it.
            severity = "note"
        self._report.add(node, "unknown-tool", severity, partial(no_tool, server, name))

    def _may_appear(self, server: ServerEntry, node: ast.expr | ast.stmt) -> bool:
        called = self._called.get(server.name)
        return server.changing and called is not None and called < (node.lineno, node.col_offset)

    def _call(self, node: ast.Call, context: Context, *, later: bool) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is None:
            return
        if symbol.kind == Kind.SERVER and symbol.server is not None:
            message = (
                f"{quoted(symbol.name)} is a server and cannot be called; call one of its tools: "
                f"`await {symbol.name}.<tool>(...)`. Tools: {tools_of(symbol.server)}"
            )
            severity = self._survey.raises(context, "TypeError")
            self._report.add(node, "not-a-tool", severity, message)
        elif symbol.kind == Kind.TOOL and symbol.server is not None and symbol.tool is not None:
            self._called.setdefault(symbol.server.name, (node.lineno, node.col_offset))
            severity = self._survey.raises(context, "ArgumentsError", later=later)
            parameters = self._reader.parameters(symbol.tool)
            signature = partial(call_signature, symbol.server.alias, symbol.tool)
            text = self._reader.text(node, context)
            self._bind(node, text, parameters, severity, symbol.name, signature)
        elif symbol.kind == Kind.HELPER and symbol.helper is not None:
            later = later and symbol.helper.asynchronous
            severity = self._survey.raises(context, "TypeError", later=later)
            signature = partial(getattr, symbol.helper, "signature")
            text, parameters = self._reader.text(node, context), helper_parameters(symbol.helper)
            self._bind(node, text, parameters, severity, symbol.name, signature)
            if symbol.helper.name in BY_NAME:
                self._by_name(node, context, symbol, later=later)

    def _by_name(self, node: ast.Call, context: Context, symbol: Symbol, *, later: bool) -> None:
        call = self._reader.helper(node, context, symbol)
        if call is None or call.server is None or call.tool is None or not call.server.known:
            return
        raised = "ArgumentsError" if call.entry else "MCPError"
        severity = self._survey.raises(context, raised, later=later)
        if symbol.name.endswith("_raw") or (self._introspects and not call.entry):
            # It may return the error instead, or the program finds out what there is.
            severity = "note"
        if call.entry is None:
            severity = "note" if self._may_appear(call.server, node) else severity
            message = partial(no_tool, call.server, call.tool, by_name=True)
            self._report.add(node, "unknown-tool", severity, message)
        self._called.setdefault(call.server.name, (node.lineno, node.col_offset))
        if call.entry is not None and call.given is not None:
            label = f"{call.server.name}.{call.entry.tool.name}"
            parameters = self._reader.parameters(call.entry)
            signature = partial(call_signature, call.server.alias, call.entry)
            self._bind(node, call.given, parameters, severity, label, signature)

    def _bind(
        self,
        node: ast.Call,
        given: CallText,
        parameters: Parameters,
        severity: Severity,
        label: str,
        signature: Callable[[], str],
    ) -> None:
        if self._seconds_left <= 0:
            return
        started = time.perf_counter()
        _, wrong = parameters.bind_all(given.args, given.kwargs)
        self._seconds_left -= time.perf_counter() - started
        keywords = {keyword.arg: keyword for keyword in node.keywords}
        for name in parameters.synonyms.keys() & given.kwargs.keys():
            own = parameters.synonyms[name].name
            message = f"{quoted(label)} gets {quoted(name)} as {quoted(own)}"
            message += ", whose description calls it an alias."
            self._report.add(keywords.get(name, node), "alias", "note", message)
        # One name may be that of a server and its tool.
        optional = label.rpartition(".")[2] in BY_NAME or given.may_be_all(parameters)
        for one in wrong:
            if one.rule != "missing-argument" or not optional:
                words = partial(wrong_argument, label, one, signature)
                self._report.add(keywords.get(one.name, node), one.rule, severity, words)
