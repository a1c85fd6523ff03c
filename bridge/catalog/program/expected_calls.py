"""Lists the calls that a program may make, from its text. Pure.

Finds calls of tools, resources and prompts with their literal arguments, and the lines that may
call something that the text does not name. The list is complete only if `ExpectedCalls.open` is
empty. It does not say how often, or whether at all, a call is made.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.arguments import COMPUTED, ArgumentReader, CallArguments, read_call_tool
from bridge.catalog.program.survey import Context, Scope, Survey
from bridge.catalog.program.symbols import (
    HELPER,
    PACKAGE,
    RUNTIME,
    SERVER,
    SERVERS,
    TOOL,
    Symbol,
    SymbolResolver,
)
from bridge.catalog.program.tables import BY_NAME
from bridge.catalog.prose import clip
from bridge.guest.schema.binding import Parameters
from bridge.model import Json, Tool
from bridge.text import valid_text

MAX_CALLS = 1_000
"""Calls listed; a program may contain far more."""

MAX_OPEN = 50
"""Lines listed that may make unnamed calls."""

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
"""Method names of these requests, as in `bridge.gate.pipeline`."""

_REQUESTS = {
    "read_resource": (READ_RESOURCE, "uri"),
    "watch_resource": (READ_RESOURCE, "uri"),
    "get_prompt": (GET_PROMPT, "name"),
    "complete": (GET_PROMPT, "name"),
}

_MAX_NAME_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class ExpectedCall:
    """One call in a program's text.

    Attributes:
        tool: The tool's own name, or `READ_RESOURCE` or `GET_PROMPT`.
        arguments: The literal arguments.
        unseen: Names of the arguments that are computed.
        open: Whether there may be arguments of any name.
        definition: The tool; None if the server has no such tool or its tools are unknown.
        loops: First lines of the enclosing loops, outermost first.
        deferred: Whether it is inside a function or generator, and so is made at another time.
    """

    line: int
    column: int
    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    open: bool = False
    definition: Tool | None = None
    loops: tuple[int, ...] = ()
    deferred: bool = False

    def may_follow(self, other: ExpectedCall) -> bool:
        """Return whether this call may be made after `other` in the same run."""
        if self.deferred or other.deferred or set(self.loops) & set(other.loops):
            return True
        return (other.line, other.column) < (self.line, self.column)


@dataclass(frozen=True, kw_only=True)
class UnnamedCall:
    """A line that may call something it does not name.

    Attributes:
        server: The server of which it may call any tool; None if it may be any server.
    """

    line: int
    why: str
    server: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedCalls:
    """The calls that a program may make.

    Attributes:
        calls, open: In the order of the lines.
        omitted: Number of both left out.
    """

    calls: tuple[ExpectedCall, ...] = ()
    open: tuple[UnnamedCall, ...] = ()
    omitted: int = 0


def expected_calls(survey: Survey, servers: Sequence[ServerEntry]) -> ExpectedCalls:
    """Return the calls that a program may make.

    Args:
        survey: The program's survey.
        servers: All configured servers. If a server's tools are unknown, any name counts as one.
    """
    reader = _Reader(survey, servers)
    reader.read()
    calls = sorted(reader.calls, key=lambda call: (call.line, call.column))
    places = sorted(set(reader.open), key=lambda found: (found.line, found.why))
    return ExpectedCalls(
        calls=tuple(calls[:MAX_CALLS]),
        open=tuple(places[:MAX_OPEN]),
        omitted=max(0, len(calls) - MAX_CALLS) + max(0, len(places) - MAX_OPEN),
    )


class _Reader:
    def __init__(self, survey: Survey, servers: Sequence[ServerEntry]) -> None:
        self._survey = survey
        self._symbols = SymbolResolver(self._survey, {server.alias: server for server in servers})
        self._given = ArgumentReader(self._survey)
        self._accounted: set[int] = set()
        self._parameters: dict[tuple[str, str], Parameters] = {}
        self.calls: list[ExpectedCall] = []
        self.open: list[UnnamedCall] = []

    def read(self) -> None:
        """Read the calls first; any other use of a tool or a server is an unnamed call."""
        for node, context in self._survey.each(ast.Call):
            self._call(node, context)
        self._bindings()
        # Names last: by now those that are part of a known call are marked.
        for node, context in self._survey.each(ast.Attribute, ast.Subscript, ast.Name):
            if id(node) not in self._accounted and isinstance(node.ctx, ast.Load):
                self._mention(node, context)
        if self._survey.tricky:
            self._anything(1, "it can call things by computed names (eval, importlib, …)")
        for node, _ in self._survey.each(ast.ImportFrom):
            module = node.module or ""
            if module.startswith("mcp") and any(item.name == "*" for item in node.names):
                self._anything(node.lineno, f"it imports every name of {module}")

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, context: Context) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is not None and symbol.kind == TOOL:
            assert symbol.server is not None
            assert symbol.tool is not None
            self._account(node.func)
            tool = symbol.tool.tool
            parameters = self._arguments(symbol.server, tool)
            self._found(
                node,
                context,
                symbol.server.name,
                tool,
                self._given.bind(node, parameters, context),
            )
        elif symbol is not None and symbol.kind == HELPER and symbol.helper is not None:
            self._account(node.func)
            self._helper(node, symbol, context)
        elif isinstance(node.func, ast.Attribute):
            self._unasked(node, node.func, context)

    def _unasked(self, node: ast.Call, function: ast.Attribute, context: Context) -> None:
        """Record a call of a server whose tools are unknown."""
        base = self._symbols.of(function.value, context)
        if base is None or base.kind != SERVER or base.server is None or base.server.known:
            return
        self._account(function)
        given = self._given.bind(node, None, context)
        self._found(node, context, base.server.name, function.attr, given)

    def _helper(self, node: ast.Call, symbol: Symbol, context: Context) -> None:
        assert symbol.helper is not None
        name = symbol.helper.name
        if name not in BY_NAME and name not in _REQUESTS:
            return
        bound = self._positions(node, symbol.helper.positional)
        if bound is not None and name in BY_NAME:
            bound = read_call_tool(node, self._survey.given)
        if bound is None:
            self._anything(node.lineno, f"{symbol.name} with arguments that cannot be seen")
            return
        if symbol.helper.owner == "runtime":
            server = self._server(bound.get("server"), context)
        else:
            assert isinstance(node.func, ast.Attribute | ast.Name)
            server = self._owner(node.func, context)
        if name == "read_resource" and "uri" not in bound and symbol.helper.owner == "runtime":
            self._anything(node.lineno, "a resource whose server depends on its address")
        elif server is None:
            self._anything(node.lineno, f"{symbol.name} with a server that is computed")
        elif name in BY_NAME:
            self._by_name(node, server, bound, context)
        else:
            self._request(node, server, name, bound, context)

    def _by_name(
        self, node: ast.Call, server: ServerEntry, bound: Mapping[str, ast.expr], context: Context
    ) -> None:
        name = self._given.value(bound["tool"], context) if "tool" in bound else None
        if not isinstance(name, str):
            self._any_tool(node.lineno, server, "the tool's name is computed")
            return
        entry = server.named(name)
        given = CallArguments()
        if "arguments" in bound:
            value = self._given.value(bound["arguments"], context)
            given.open = value is not None and (value == COMPUTED or not isinstance(value, dict))
            for key, item in value.items() if isinstance(value, dict) and not given.open else ():
                given.take(key, item)
        self._found(node, context, server.name, entry.tool if entry else name, given)

    def _request(
        self,
        node: ast.Call,
        server: ServerEntry,
        helper: str,
        bound: Mapping[str, ast.expr],
        context: Context,
    ) -> None:
        method, first = _REQUESTS[helper]
        # Their further arguments are not read here.
        given = CallArguments(open=helper in ("watch_resource", "complete"))
        if helper == "complete":
            ref = self._given.value(bound["ref"], context) if "ref" in bound else None
            if not isinstance(ref, str):
                self._anything(node.lineno, "a completion with a computed reference")
                return
            if ":" in ref or "{" in ref:
                method, first = READ_RESOURCE, "uri"
            bound = {first: bound["ref"]}
        for name in (first, "arguments"):
            if name in bound:
                given.take(name, self._given.value(bound[name], context))
        if helper == "read_resource" and set(bound) - {"server", "uri"}:
            # The arguments are filled into the address, a template.
            given.seen.pop("uri", None)
            given.unseen = ["uri"]
        self._found(node, context, server.name, method, given)

    def _found(
        self, node: ast.expr, context: Context, server: str, tool: Tool | str, given: CallArguments
    ) -> None:
        self.calls.append(
            ExpectedCall(
                line=node.lineno,
                column=node.col_offset,
                server=server,
                tool=tool if isinstance(tool, str) else tool.name,
                arguments=given.seen,
                unseen=tuple(dict.fromkeys(given.unseen)),
                open=given.open,
                definition=None if isinstance(tool, str) else tool,
                loops=context.loops,
                deferred=_is_deferred(context),
            )
        )

    def _arguments(self, server: ServerEntry, tool: Tool) -> Parameters:
        key = (server.alias, tool.name)
        if key not in self._parameters:
            self._parameters[key] = Parameters(tool.input_schema)
        return self._parameters[key]

    # --- uses that are not understood ------------------------------------------------------------

    def _positions(self, node: ast.Call, names: Sequence[str]) -> dict[str, ast.expr] | None:
        """Return a helper's arguments by name; None if some are unpacked."""
        if any(isinstance(item, ast.Starred) for item in node.args):
            return None
        if any(keyword.arg is None for keyword in node.keywords):
            return None
        found = dict(zip(names, node.args, strict=False))
        found.update({str(keyword.arg): keyword.value for keyword in node.keywords})
        return found

    def _server(self, node: ast.expr | None, context: Context) -> ServerEntry | None:
        name = None if node is None else self._given.value(node, context)
        return self._symbols.named_server(name) if isinstance(name, str) else None

    def _owner(self, function: ast.Attribute | ast.Name, context: Context) -> ServerEntry | None:
        if isinstance(function, ast.Attribute):
            base = self._symbols.of(function.value, context)
            if base is not None and base.kind == SERVER:
                return base.server
        label = self._symbols.of(function, context)
        alias = label.name.partition(".")[0].removeprefix("mcp_") if label is not None else ""
        return self._symbols.imported_server(alias)

    def _account(self, node: ast.expr) -> None:
        """Mark an expression, and those it is taken from, as understood."""
        self._accounted.add(id(node))
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            self._accounted.add(id(node))

    def _bindings(self) -> None:
        """Mark values that only get another name: calls by that name are found."""
        for node, context in self._survey.each(ast.Assign):
            if all(
                isinstance(target, ast.Name) and self._symbols.of(target, context) is not None
                for target in node.targets
            ):
                self._account(node.value)

    def _mention(self, node: ast.Name | ast.Attribute | ast.Subscript, context: Context) -> None:
        symbol = self._symbols.of(node, context)
        if symbol is None:
            if isinstance(node, ast.Attribute):
                # `runtime.MCPError`: attributes of these are known, or make no call.
                base = self._symbols.of(node.value, context)
                if base is not None and base.kind in (RUNTIME, PACKAGE):
                    self._account(node.value)
                elif base is not None and base.kind == SERVER and base.server is not None:
                    self._account(node)
                    why = f"it has no known tool {clip(node.attr, _MAX_NAME_CHARS)!r}"
                    self._any_tool(node.lineno, base.server, why)
            return
        if isinstance(node, ast.Attribute | ast.Subscript):
            # Report the whole expression once.
            self._account(node)
        if symbol.kind == TOOL and symbol.server is not None and symbol.tool is not None:
            self._found(
                node, context, symbol.server.name, symbol.tool.tool, CallArguments(open=True)
            )
        elif symbol.kind == SERVER and symbol.server is not None:
            self._any_tool(node.lineno, symbol.server, "the server is used as a whole")
        elif symbol.kind == HELPER and symbol.helper is not None:
            if symbol.helper.name in BY_NAME or symbol.helper.name in _REQUESTS:
                self._anything(node.lineno, f"{symbol.name} is passed on")
        elif symbol.kind in (SERVERS, PACKAGE, RUNTIME):
            self._anything(node.lineno, "it chooses among the servers at run time")

    def _any_tool(self, line: int, server: ServerEntry, why: str) -> None:
        self.open.append(UnnamedCall(line=line, server=server.name, why=why))

    def _anything(self, line: int, why: str) -> None:
        self.open.append(UnnamedCall(line=line, why=valid_text(clip(why, _MAX_NAME_CHARS))))


def _is_deferred(context: Context) -> bool:
    """Return whether a context is inside a function or a generator, so that it runs later."""
    scope: Scope | None = context.scope
    while scope is not None:
        if scope.kind == "function" or scope.generator:
            return True
        scope = scope.parent
    return False
