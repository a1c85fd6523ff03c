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

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.arguments import ArgumentReader, helper_parameters, read_call_tool
from bridge.catalog.program.certainty import Certainty
from bridge.catalog.program.report import SIGNATURE, Report, did_you_mean, listed, quoted
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import HELPER, RUNTIME, SERVER, TOOL, Symbol, SymbolResolver
from bridge.catalog.program.tables import (
    BY_NAME,
    HELPERS,
    MODULE_NAMES,
    NOT_OF_MODULES,
    RUNTIME_TYPES,
    SERVER_METHODS,
)
from bridge.catalog.prose import clip
from bridge.catalog.stubs import call_signature
from bridge.guest.schema.binding import Parameters
from bridge.guest.schema.names import nearest
from bridge.model import Severity

SECONDS_FOR_VALUES = 0.2
"""Time for checking the literal values in one program. Only hostile schemas take so long; the guest
checks all values again before each call."""

_MODULE_NAMES = MODULE_NAMES | (SERVER_METHODS.keys() - NOT_OF_MODULES)

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
        self._given = ArgumentReader(survey)
        self._parameters: dict[tuple[str, str], Parameters] = {}
        self._seconds_left = SECONDS_FOR_VALUES
        names = [node.id for node, _ in survey.each(ast.Name)]
        names += [node.attr for node, _ in survey.each(ast.Attribute)]
        self._introspects = not _INTROSPECTIVE.isdisjoint(names)

    def check(self) -> None:
        """Report the mistakes."""
        for node, context in self._survey.each(ast.Attribute):
            if isinstance(node.ctx, ast.Load) and not node.attr.startswith("_"):
                self._attribute(node, context)
        for node, context in self._survey.each(ast.Subscript):
            self._item(node, context)
        for node, context in self._survey.each(ast.ImportFrom):
            self._import(node, context)
        for node, context in self._survey.each(ast.With, ast.AsyncWith):
            for item in node.items:
                self._with_item(item.context_expr, context)
        awaited = {id(node.value) for node, _ in self._survey.each(ast.Await)}
        for node, context in self._survey.each(ast.Call):
            self._call(node, context, later=id(node) not in awaited)

    # --- names -----------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, context: Context) -> None:
        name = node.attr
        base = None if name in self._survey.stored else self._symbols.of(node.value, context)
        if base is None:
            return
        if base.kind == SERVER and base.server is not None:
            extra = _MODULE_NAMES if base.as_module else SERVER_METHODS.keys()
            if name not in extra and name not in self._symbols.tools(base.server):
                self._no_tool(node, context, base.server, name, "AttributeError")
        elif base.kind == RUNTIME:
            self._helper_named(node, context, name, "AttributeError")

    def _item(self, node: ast.Subscript, context: Context) -> None:
        key = node.slice
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return
        base = self._symbols.of(node.value, context)
        if base is None or base.server is None or base.kind != SERVER or base.as_module:
            return
        if base.server.named(key.value) is None:
            self._no_tool(node, context, base.server, key.value, "MissingKeyError")

    def _import(self, node: ast.ImportFrom, context: Context) -> None:
        module = "" if node.level else node.module or ""
        package, _, alias = module.rpartition(".")
        server = self._symbols.imported_server(alias) if package == "mcp.servers" else None
        for item in node.names:
            name = item.name
            if name == "*" or name.startswith("_"):
                continue
            if module == "mcp.runtime":
                self._helper_named(node, context, name, "ImportError")
            elif server is not None and name not in {*_MODULE_NAMES, *self._symbols.tools(server)}:
                self._no_tool(node, context, server, name, "ImportError")

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

    def _no_tool(
        self, node: ast.AST, context: Context, server: ServerEntry, name: str, kind: str
    ) -> None:
        if self._report.exhausted:
            return
        severity = self._certainty.raises(context, kind)
        looked_for = name in self._survey.words and kind != "MissingKeyError"
        if looked_for or (self._introspects and context.conditional):
            # The program tests whether the tool exists.
            severity = "note"
        names = [entry.alias for entry in server.tools]
        near = nearest(name, names)
        hint = ""
        if name in BY_NAME:
            how = f"await runtime.{name}({clip(server.name, 60)!r}, tool, {{...}})"
            hint = f" Call a tool by name: `{how}`."
        elif near:
            entry = self._symbols.tools(server)[near]
            hint = f" Did you mean `{call_signature(server.alias, entry)}`?"
        if not near or name in BY_NAME or len(names) <= 6:
            hint += f" Tools: {listed(names)}."
        message = f"`mcp_{server.alias}` has no tool {quoted(name)}.{hint}"
        self._report.add(node, "unknown-tool", severity, message)

    def _helper_named(self, node: ast.AST, context: Context, name: str, kind: str) -> None:
        if self._report.exhausted or name in HELPERS or name in RUNTIME_TYPES:
            return
        names = [*HELPERS, *RUNTIME_TYPES]
        near = nearest(name, names)
        if near in HELPERS:
            hint = f" Did you mean {quoted(HELPERS[near].signature)}?"
        else:
            hint = did_you_mean(name, names) or f" It has {', '.join(sorted(HELPERS))}."
        severity = self._certainty.raises(context, kind)
        message = f"`runtime` has no {quoted(name)}.{hint}"
        self._report.add(node, "unknown-helper", severity, message)

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, context: Context, *, later: bool) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is None:
            return
        if symbol.kind == SERVER:
            names = [entry.alias for entry in symbol.server.tools] if symbol.server else []
            message = (
                f"{quoted(symbol.name)} is a server and cannot be called; "
                f"call one of its tools: `await {symbol.name}.<tool>(...)`. Tools: {listed(names)}"
            )
            severity = self._certainty.raises(context, "TypeError")
            self._report.add(node, "not-a-tool", severity, message)
        elif symbol.kind == TOOL and symbol.server is not None and symbol.tool is not None:
            certain = partial(self._certainty.raises, context, "ArgumentsError", later=later)
            self._bind(node, self._tool(symbol.server, symbol.tool, symbol.name, certain), context)
        elif symbol.kind == HELPER and symbol.helper is not None:
            self._helper(node, context, symbol, later=later)

    def _helper(self, node: ast.Call, context: Context, symbol: Symbol, *, later: bool) -> None:
        helper = symbol.helper
        assert helper is not None
        later = later and helper.asynchronous
        callee = _Callee(
            label=symbol.name,
            parameters=helper_parameters(helper),
            severity=partial(self._certainty.raises, context, "TypeError", later=later),
            signature=lambda: helper.signature,
        )
        self._bind(node, callee, context)
        if helper.name in BY_NAME:

            def severity(kind: str) -> Severity:
                # `call_tool_raw` may return the error instead.
                unsure = helper.name != "call_tool" or (self._introspects and context.conditional)
                return "note" if unsure else self._certainty.raises(context, kind, later=later)

            self._by_name(node, severity, context)

    def _by_name(
        self, node: ast.Call, severity: Callable[[str], Severity], context: Context
    ) -> None:
        """`runtime.call_tool("server", "tool", {...})`."""
        bound = read_call_tool(node, self._survey.given)
        server_name, tool_name = (getattr(bound.get(n), "value", None) for n in ("server", "tool"))
        if not isinstance(server_name, str) or not isinstance(tool_name, str):
            return
        server = self._symbols.named_server(server_name)
        if server is None or not server.known:
            return
        names = [entry.tool.name for entry in server.tools]
        entry = server.named(tool_name)
        if entry is None:
            near = did_you_mean(tool_name, names) or f" Tools: {listed(names)}."
            message = f"the server {quoted(server.name)} has no tool {quoted(tool_name)}.{near}"
            self._report.add(node, "unknown-tool", severity("MCPError"), message)
            return
        given = bound.get("arguments")
        if isinstance(given, ast.Dict) and all(isinstance(key, ast.Constant) for key in given.keys):
            keywords = [
                ast.keyword(arg=str(key.value), value=value)
                for key, value in zip(given.keys, given.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
            call = ast.copy_location(ast.Call(func=node.func, args=[], keywords=keywords), node)
            label = f"{server.name}.{entry.tool.name}"
            certain = partial(severity, "ArgumentsError")
            self._bind(call, self._tool(server, entry, label, certain), context)

    def _tool(
        self, server: ServerEntry, entry: ToolEntry, label: str, severity: Callable[[], Severity]
    ) -> _Callee:
        key = (server.alias, entry.alias)
        if key not in self._parameters:
            self._parameters[key] = Parameters(entry.tool.input_schema)
        signature = partial(call_signature, server.alias, entry)
        return _Callee(
            label=label, parameters=self._parameters[key], severity=severity, signature=signature
        )

    # --- arguments -------------------------------------------------------------------------------

    def _bind(self, node: ast.Call, callee: _Callee, context: Context) -> None:
        """Report which of a call's arguments do not fit."""
        if self._report.exhausted or self._seconds_left <= 0:
            return
        parameters = callee.parameters
        given = self._given.read(node, context)
        started = time.perf_counter()
        _, wrong = parameters.bind_all(given.args, given.kwargs)
        self._seconds_left -= time.perf_counter() - started
        keywords = {keyword.arg: keyword for keyword in node.keywords}
        for name in parameters.synonyms.keys() & given.kwargs.keys():
            own = parameters.synonyms[name].name
            message = f"{quoted(callee.label)} gets {quoted(name)} as {quoted(own)}"
            message += ", whose description calls it an alias."
            self._report.add(keywords.get(name, node), "alias", "note", message)
        helper = callee.label.rpartition(".")[2]
        apart = _APART.get(helper)
        for one in wrong:
            # One name may be that of a server and its tool.
            optional = helper in BY_NAME or given.may_be_all(parameters)
            if one.rule == "missing-argument" and optional:
                continue
            text = one.text
            if apart and one.rule == "unknown-argument":
                in_dict = apart % f"{{{one.name[:64]!r}: ...}}"
                text = f"has no parameter {quoted(one.name)}: its own arguments go into a dict, "
                text += f"`{in_dict}`"
            self._report_call(keywords.get(one.name, node), callee, one.rule, text)

    def _report_call(self, node: ast.AST, callee: _Callee, rule: str, problem: str) -> None:
        if self._report.exhausted:
            return
        end = "" if problem.endswith("?") else "."
        message = f"{quoted(callee.label)} {problem}{end}{SIGNATURE}`{callee.signature()}`"
        self._report.add(node, rule, callee.severity(), message)
