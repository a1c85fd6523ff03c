"""Rules on tools and helpers: unknown ones, and arguments that do not fit.

unknown-tool, unknown-helper, not-a-tool, missing-argument, unknown-argument, repeated-argument,
too-many-arguments, arguments-in-dict, wrong-value, alias.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from functools import partial

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.advice import (
    no_helper,
    no_tool,
    quoted,
    tools_of,
    wrong_argument,
)
from bridge.catalog.program.arguments import CallReader, CallText, helper_parameters
from bridge.catalog.program.report import Report
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import Kind, Symbol, SymbolResolver
from bridge.catalog.program.tables import BY_NAME
from bridge.catalog.stubs import call_signature
from bridge.guest.schema.binding import Parameters
from bridge.model import Severity

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
