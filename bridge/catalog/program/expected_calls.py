"""Lists the calls in a program: of tools, resources and prompts, with literal arguments. Pure.

The list is complete only if `ExpectedCalls.open` is empty. A listed call may be made any number of
times, or never.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.references import COMPUTED, CallReader, CallText
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import BY_NAME, Kind, Symbol, SymbolResolver
from bridge.guest.protocol.placeholders import WHOLE
from bridge.model import Json, Tool
from bridge.text import clip, valid_text

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
"""Method names of these requests, as in `bridge.gate.pipeline`."""

_REQUESTS = {
    "read_resource": (READ_RESOURCE, "uri"),
    "watch_resource": (READ_RESOURCE, "uri"),
    "get_prompt": (GET_PROMPT, "name"),
}

_CALLING = {*BY_NAME, *_REQUESTS, "complete"}


@dataclass(frozen=True, kw_only=True)
class ExpectedCall:
    """One call in a program's text."""

    line: int
    column: int
    server: str
    tool: str  # The tool's own name, or `READ_RESOURCE` or `GET_PROMPT`.
    arguments: Mapping[str, Json] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()  # Names of the arguments that are computed.
    open: bool = False  # Whether there may be arguments of any name.
    definition: Tool | None = None  # None if the server has no such tool, or is unknown.
    loops: tuple[int, ...] = ()  # First lines of the enclosing loops, outermost first.
    deferred: bool = False  # Whether a function or generator makes it, at another time.

    def may_follow(self, other: ExpectedCall) -> bool:
        if self.deferred or other.deferred or set(self.loops) & set(other.loops):
            return True
        return (other.line, other.column) < (self.line, self.column)


@dataclass(frozen=True, kw_only=True)
class UnnamedCall:
    """A line that may call something it does not name: any tool of `server`, or of any server."""

    line: int
    why: str
    server: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedCalls:
    calls: tuple[ExpectedCall, ...] = ()
    open: tuple[UnnamedCall, ...] = ()


def expected_calls(survey: Survey, servers: Sequence[ServerEntry]) -> ExpectedCalls:
    """Return the calls that a program may make; of a server with unknown tools, of any name."""
    return _ExpectedCallReader(survey, servers).read()


class _ExpectedCallReader:
    def __init__(self, survey: Survey, servers: Sequence[ServerEntry]) -> None:
        self._survey = survey
        self._symbols = SymbolResolver(survey, {server.alias: server for server in servers})
        self._reader = CallReader(survey, self._symbols)
        self._accounted: set[int] = set()
        self.calls: list[ExpectedCall] = []
        self.open: list[UnnamedCall] = []

    def read(self) -> ExpectedCalls:
        """Read the calls first; any other use of a tool or a server is an unnamed call."""
        for node, context in self._survey.each(ast.Call):
            self._call(node, context)
        for node, context in self._survey.each(ast.Assign):
            # A value that only gets another name: calls by that name are found.
            named = all(isinstance(target, ast.Name) for target in node.targets)
            symbols = [self._symbols.of(target, context) for target in node.targets if named]
            if named and all(one is not None and one.kind != Kind.NO_TOOL for one in symbols):
                self._account(node.value)
        # Names last: now those that are part of a known call are marked.
        for node, context in self._survey.each(ast.Attribute, ast.Subscript, ast.Name):
            if id(node) not in self._accounted and isinstance(node.ctx, ast.Load):
                self._mention(node, context)
        if self._survey.tricky:
            self._add_unnamed(1, "it can call things by computed names (eval, importlib, …)")
        for node, _ in self._survey.each(ast.ImportFrom):
            module = node.module or ""
            if module.startswith("mcp") and any(item.name == "*" for item in node.names):
                self._add_unnamed(node.lineno, f"it imports every name of {module}")
        return ExpectedCalls(
            calls=tuple(sorted(self.calls, key=lambda call: (call.line, call.column))),
            open=tuple(sorted(set(self.open), key=lambda call: (call.line, call.why))),
        )

    def _call(self, node: ast.Call, context: Context) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is None or symbol.kind not in (Kind.TOOL, Kind.HELPER, Kind.NO_TOOL):
            return
        if symbol.kind == Kind.HELPER:
            self._account(node.func)
            self._helper(node, symbol, context)
        elif symbol.server is not None and (symbol.tool or not symbol.server.known):
            self._account(node.func)
            text = self._reader.text(node, context)
            if symbol.tool is not None:
                text = self._bound(text, symbol.tool)
            else:
                text = replace(text, unpacked=text.unpacked or bool(node.args))
            self._add(node, context, symbol.server, symbol.tool or symbol.name, text)

    def _bound(self, text: CallText, entry: ToolEntry) -> CallText:
        parameters = self._reader.parameters(entry)
        bound, _ = parameters.bind_all(text.args, text.kwargs)
        if text.starred:
            # Defaults are sent only for what is left out.
            own = {one.name for name in text.kwargs if (one := parameters.by_name.get(name))}
            bound = {name: value for name, value in bound.items() if name in own}
        return CallText(kwargs=bound, unpacked=text.may_be_all(parameters))

    def _helper(self, node: ast.Call, symbol: Symbol, context: Context) -> None:
        name = symbol.helper.name if symbol.helper else ""
        if name not in _CALLING:
            return
        call = self._reader.helper(node, context, symbol)
        if call is None:
            self._add_unnamed(node.lineno, f"{symbol.name} with arguments that cannot be seen")
        elif name == "read_resource" and "uri" not in call.values:
            self._add_unnamed(node.lineno, "a resource whose server depends on its address")
        elif call.server is None:
            self._add_unnamed(node.lineno, f"{symbol.name} with a server that is computed")
        elif name == "complete":
            self._add_unnamed(node.lineno, "it completes an argument of a prompt", call.server)
        elif name in _REQUESTS:
            method, first = _REQUESTS[name]
            values = {key: call.values[key] for key in (first, "arguments") if key in call.values}
            if name == "read_resource" and call.values.keys() - {"server", "uri"}:
                # The arguments are filled into the address, a template.
                values = {"uri": COMPUTED}
            text = CallText(kwargs=values, unpacked=name == "watch_resource")
            self._add(node, context, call.server, method, text)
        elif call.tool is None:
            self._add_unnamed(node.lineno, "the tool's name is computed", call.server)
        else:
            text = call.given or CallText(kwargs={}, unpacked=True)
            self._add(node, context, call.server, call.entry or call.tool, text)

    def _add(
        self,
        node: ast.expr,
        context: Context,
        server: ServerEntry,
        tool: ToolEntry | str,
        text: CallText,
    ) -> None:
        values = {valid_text(name): value for name, value in text.kwargs.items()}
        unseen = tuple(name for name, value in values.items() if _is_computed(value))
        self.calls.append(
            ExpectedCall(
                line=node.lineno,
                column=node.col_offset,
                server=server.name,
                tool=tool if isinstance(tool, str) else tool.tool.name,
                arguments={name: values[name] for name in values if name not in unseen},
                unseen=unseen,
                open=text.starred or text.unpacked,
                definition=None if isinstance(tool, str) else tool.tool,
                loops=context.loops,
                deferred=any(
                    scope.kind == "function" or scope.generator for scope in context.scope.chain()
                ),
            )
        )

    def _account(self, node: ast.expr) -> None:
        self._accounted.add(id(node))
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            self._accounted.add(id(node))

    def _mention(self, node: ast.Name | ast.Attribute | ast.Subscript, context: Context) -> None:
        symbol = self._symbols.of(node, context)
        if symbol is None or symbol.kind == Kind.NO_HELPER:
            if isinstance(node, ast.Attribute):
                # `runtime.MCPError`: attributes of these are known, or make no call.
                base = self._symbols.of(node.value, context)
                if base is not None and base.kind in (Kind.RUNTIME, Kind.PACKAGE):
                    self._account(node.value)
            return
        if isinstance(node, ast.Attribute | ast.Subscript):
            # Report the whole expression once.
            self._account(node)
        if symbol.kind == Kind.TOOL and symbol.server is not None and symbol.tool is not None:
            self._add(node, context, symbol.server, symbol.tool, CallText(kwargs={}, unpacked=True))
        elif symbol.kind == Kind.SERVER:
            self._add_unnamed(node.lineno, "the server is used as a whole", symbol.server)
        elif symbol.kind == Kind.NO_TOOL and not isinstance(node, ast.Name):
            self._add_unnamed(node.lineno, f"it has no known tool {symbol.name!r}", symbol.server)
        elif symbol.helper is not None and symbol.helper.name in _CALLING:
            self._add_unnamed(node.lineno, f"{symbol.name} is passed on")
        elif symbol.kind in (Kind.SERVERS, Kind.PACKAGE, Kind.RUNTIME):
            self._add_unnamed(node.lineno, "it chooses among the servers at run time")

    def _add_unnamed(self, line: int, why: str, server: ServerEntry | None = None) -> None:
        why = valid_text(clip(why, 110))
        name = None if server is None else server.name
        self.open.append(UnnamedCall(line=line, why=why, server=name))


def _is_computed(value: Json) -> bool:
    if isinstance(value, dict):
        return WHOLE in value or any(map(_is_computed, value.values()))
    return isinstance(value, list) and any(map(_is_computed, value))
