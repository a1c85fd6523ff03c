"""Rules on tools and helpers: unknown ones, and arguments that do not fit.

unknown-tool, unknown-helper, not-a-tool, missing-argument, unknown-argument, repeated-argument,
too-many-arguments, arguments-in-dict, wrong-value, alias.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.arguments import CallReader, CallText, helper_parameters
from bridge.catalog.program.certainty import Certainty
from bridge.catalog.program.report import SIGNATURE, Report, listed, quoted
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import (
    HELPER,
    NO_HELPER,
    NO_TOOL,
    SERVER,
    TOOL,
    Symbol,
    SymbolResolver,
)
from bridge.catalog.program.tables import BY_NAME, HELPERS, RUNTIME_TYPES
from bridge.catalog.prose import clip
from bridge.catalog.stubs import call_signature
from bridge.guest.schema.binding import Parameters, Wrong
from bridge.guest.schema.names import nearest
from bridge.model import Severity

SECONDS_FOR_VALUES = 0.2
"""Time for checking the literal values in one program. Only hostile schemas take so long; the guest
checks all values again before each call."""

_INTROSPECTIVE = frozenset(
    """
    dir getattr hasattr help inspect list_tools list_tools_sync query_tool_docs
    query_tool_docs_sync describe_server search_tool_docs search_tool_docs_sync TOOLS TOOL_MAP
    """.split()  # noqa: SIM905 - as words they can be read
)
"""With these a program can find out which tools exist, and then use only those."""

_APART = {
    "get_prompt": "get_prompt(..., %s)",
    **{name: f"runtime.{name}(server, tool, %s)" for name in BY_NAME},
}
"""Helpers that take the arguments of a tool or a prompt as a dict."""


@dataclass(frozen=True, kw_only=True)
class _Callee:
    """A tool or a helper that is called.

    Attributes:
        label: Its name in messages.
        severity: Returns the severity of a wrong call.
        signature: Returns its signature.
    """

    label: str
    parameters: Parameters
    severity: Callable[[], Severity]
    signature: Callable[[], str]


class CallRules:
    """Checks a program's uses and calls of tools and helpers."""

    def __init__(
        self, survey: Survey, symbols: SymbolResolver, certainty: Certainty, report: Report
    ) -> None:
        self._survey = survey
        self._symbols = symbols
        self._certainty = certainty
        self._report = report
        self._reader = CallReader(survey, symbols)
        self._seconds_left = SECONDS_FOR_VALUES
        names = [node.id for node, _ in survey.each(ast.Name)]
        names += [node.attr for node, _ in survey.each(ast.Attribute)]
        self._introspects = not _INTROSPECTIVE.isdisjoint(names)

    def check(self) -> None:
        """Report the mistakes."""
        for kind, raised in ((ast.Attribute, "AttributeError"), (ast.Subscript, "MissingKeyError")):
            for node, context in self._survey.each(kind):
                if isinstance(node.ctx, ast.Load):
                    self._name(node, context, self._symbols.of(node, context), raised)
        for node, context in self._survey.each(ast.ImportFrom):
            for item in node.names if node.module and not node.level else ():
                if item.name != "*":
                    symbol = self._symbols.imported(f"{node.module}.{item.name}")
                    self._name(node, context, symbol, "ImportError")
        for node, context in self._survey.each(ast.With, ast.AsyncWith):
            for item in node.items:
                self._with_item(item.context_expr, context)
        awaited = {id(node.value) for node, _ in self._survey.each(ast.Await)}
        for node, context in self._survey.each(ast.Call):
            self._call(node, context, later=id(node) not in awaited)

    # --- names -----------------------------------------------------------------------------------

    def _name(self, node: ast.AST, context: Context, symbol: Symbol | None, raised: str) -> None:
        if symbol is None or symbol.kind not in (NO_TOOL, NO_HELPER):
            return
        name, server = symbol.name, symbol.server
        severity = self._certainty.raises(context, raised)
        if server is None:
            self._report.add(node, "unknown-helper", severity, partial(_no_helper, name))
            return
        looked_for = name in self._survey.words and raised != "MissingKeyError"
        if looked_for or self._introspects:
            # The program tests whether the tool exists.
            severity = "note"
        self._report.add(node, "unknown-tool", severity, partial(_no_tool, server, name))

    def _with_item(self, node: ast.expr, context: Context) -> None:
        """Report `async with mcp_x as x`: a server object is no client that has to be opened."""
        symbol = self._symbols.of(node, context)
        if symbol is None or symbol.kind != SERVER:
            return
        # Python 3.10 and older raise AttributeError, newer ones TypeError.
        severities = {self._certainty.raises(context, k) for k in ("TypeError", "AttributeError")}
        message = (
            f"{quoted(symbol.name)} is connected already and is no context manager: remove the "
            f"`with`, and call `await {symbol.name}.<tool>(...)`"
        )
        severity: Severity = "note" if "note" in severities else "deny"
        self._report.add(node, "not-a-tool", severity, message)

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, context: Context, *, later: bool) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is None:
            return
        if symbol.kind == SERVER and symbol.server is not None:
            message = (
                f"{quoted(symbol.name)} is a server and cannot be called; call one of its tools: "
                f"`await {symbol.name}.<tool>(...)`. Tools: {_tools(symbol.server)}"
            )
            severity = self._certainty.raises(context, "TypeError")
            self._report.add(node, "not-a-tool", severity, message)
        elif symbol.kind == TOOL and symbol.server is not None and symbol.tool is not None:
            callee = _Callee(
                label=symbol.name,
                parameters=self._reader.parameters(symbol.tool),
                severity=partial(self._certainty.raises, context, "ArgumentsError", later=later),
                signature=partial(call_signature, symbol.server.alias, symbol.tool),
            )
            self._bind(node, callee, self._reader.text(node, context))
        elif symbol.kind == HELPER and symbol.helper is not None:
            later = later and symbol.helper.asynchronous
            callee = _Callee(
                label=symbol.name,
                parameters=helper_parameters(symbol.helper),
                severity=partial(self._certainty.raises, context, "TypeError", later=later),
                signature=partial(getattr, symbol.helper, "signature"),
            )
            self._bind(node, callee, self._reader.text(node, context))
            if symbol.helper.name in BY_NAME:
                self._by_name(node, context, symbol, later=later)

    def _by_name(self, node: ast.Call, context: Context, symbol: Symbol, *, later: bool) -> None:
        """`runtime.call_tool("server", "tool", {...})`."""
        call = self._reader.helper(node, context, symbol)
        if call is None or call.server is None or call.tool is None or not call.server.known:
            return
        # `call_tool_raw` may return the error instead.
        unsure = symbol.name.endswith("_raw") or self._introspects

        def severity(kind: str) -> Severity:
            return "note" if unsure else self._certainty.raises(context, kind, later=later)

        if call.entry is None:
            message = partial(_no_tool, call.server, call.tool, by_name=True)
            self._report.add(node, "unknown-tool", severity("MCPError"), message)
        elif call.given is not None:
            callee = _Callee(
                label=f"{call.server.name}.{call.entry.tool.name}",
                parameters=self._reader.parameters(call.entry),
                severity=partial(severity, "ArgumentsError"),
                signature=partial(call_signature, call.server.alias, call.entry),
            )
            self._bind(node, callee, call.given)

    def _bind(self, node: ast.Call, callee: _Callee, given: CallText) -> None:
        """Report which of a call's arguments do not fit."""
        if self._seconds_left <= 0:
            return
        parameters = callee.parameters
        started = time.perf_counter()
        _, wrong = parameters.bind_all(given.args, given.kwargs)
        self._seconds_left -= time.perf_counter() - started
        keywords = {keyword.arg: keyword for keyword in node.keywords}
        for name in parameters.synonyms.keys() & given.kwargs.keys():
            own = parameters.synonyms[name].name
            message = f"{quoted(callee.label)} gets {quoted(name)} as {quoted(own)}"
            message += ", whose description calls it an alias."
            self._report.add(keywords.get(name, node), "alias", "note", message)
        # One name may be that of a server and its tool.
        optional = callee.label.rpartition(".")[2] in BY_NAME or given.may_be_all(parameters)
        for one in wrong:
            if one.rule != "missing-argument" or not optional:
                place = keywords.get(one.name, node)
                self._report.add(place, one.rule, callee.severity(), partial(_wrong, callee, one))


# --- messages ------------------------------------------------------------------------------------


def _tools(server: ServerEntry) -> str:
    return listed([entry.alias for entry in server.tools])


def _no_tool(server: ServerEntry, name: str, *, by_name: bool = False) -> str:
    """Return that a server has no such tool, with the nearest one, or with all there are."""
    names = {entry.tool.name if by_name else entry.alias: entry for entry in server.tools}
    near = nearest(name, names)
    hint = ""
    if name in BY_NAME:
        how = f"await runtime.{name}({clip(server.name, 60)!r}, tool, {{...}})"
        hint = f" Call a tool by name: `{how}`."
    elif near:
        meant = near if by_name else call_signature(server.alias, names[near])
        hint = f" Did you mean `{meant}`?"
    if not near or name in BY_NAME or (len(names) <= 6 and not by_name):
        hint += f" Tools: {listed([*names])}."
    owner = f"the server {quoted(server.name)}" if by_name else f"`mcp_{server.alias}`"
    return f"{owner} has no tool {quoted(name)}.{hint}"


def _no_helper(name: str) -> str:
    near = nearest(name, [*HELPERS, *RUNTIME_TYPES])
    hint = f" It has {', '.join(sorted(HELPERS))}."
    if near:
        hint = f" Did you mean {quoted(HELPERS[near].signature if near in HELPERS else near)}?"
    return f"`runtime` has no {quoted(name)}.{hint}"


def _wrong(callee: _Callee, one: Wrong) -> str:
    text = one.text
    apart = _APART.get(callee.label.rpartition(".")[2])
    if apart and one.rule == "unknown-argument":
        in_dict = apart % f"{{{one.name[:64]!r}: ...}}"
        text = f"has no parameter {quoted(one.name)}: its own arguments go into a dict, "
        text += f"`{in_dict}`"
    end = "" if text.endswith("?") else "."
    return f"{quoted(callee.label)} {text}{end}{SIGNATURE}`{callee.signature()}`"
