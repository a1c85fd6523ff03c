"""Which calls a program makes, as far as reading it tells. Pure.

Owns the finding of calls, of the arguments that are written out in them, and of the places where a
program may call something that its text does not name. Finds no fewer than there are only where
`Foreseen.open` is empty, and says nothing about how often, or whether at all, a call is made.
Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.arguments import Arguments, Given, GivenReader, arguments_of
from bridge.catalog.program.meaning import (
    HELPER,
    PACKAGE,
    RUNTIME,
    SERVER,
    SERVERS,
    TOOL,
    Meaning,
    Meanings,
)
from bridge.catalog.program.survey import Place, Scope, Survey
from bridge.catalog.program.tables import BY_NAME
from bridge.catalog.prose import clip
from bridge.model import Json, Tool
from bridge.text import valid_text

MAX_CALLS = 1_000
"""Calls that are listed; a program has megabytes of room for more."""

MAX_OPEN = 50
"""Places listed at which anything may be called."""

READ_RESOURCE = "resources/read"
GET_PROMPT = "prompts/get"
"""As `bridge.gate.pipeline` calls these requests."""

_REQUESTS = {
    "read_resource": (READ_RESOURCE, "uri"),
    "watch_resource": (READ_RESOURCE, "uri"),
    "get_prompt": (GET_PROMPT, "name"),
    "complete": (GET_PROMPT, "name"),
}

_MAX_NAME_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class ForeseenCall:
    """One place at which a program calls something.

    Attributes:
        tool: The tool's own name, or `READ_RESOURCE` or `GET_PROMPT`.
        arguments: Those that are written out.
        unseen: Names of those that only running the program would tell.
        open: Whether there may be arguments of any name.
        definition: None if the server has no such tool, or was never asked.
        loops: Lines at which loops around it begin, from the outside in.
        deferred: Whether it is made when a function is called, wherever that is.
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

    def may_follow(self, other: ForeseenCall) -> bool:
        """Tell whether this may be made after `other` has been, in the same run."""
        if self.deferred or other.deferred or set(self.loops) & set(other.loops):
            return True
        return (other.line, other.column) < (self.line, self.column)


@dataclass(frozen=True, kw_only=True)
class OpenPlace:
    """A place at which a program may call what it does not name there.

    Attributes:
        server: The one of which it may be any tool; None if it may be any server.
    """

    line: int
    why: str
    server: str | None = None


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What was found.

    Attributes:
        calls, open: In the order of the lines.
        omitted: How many more of both there were.
    """

    calls: tuple[ForeseenCall, ...] = ()
    open: tuple[OpenPlace, ...] = ()
    omitted: int = 0


def foreseen_calls(survey: Survey, servers: Sequence[ServerEntry]) -> Foreseen:
    """Return the calls that a program makes.

    Args:
        survey: Of the program, from whoever read it.
        servers: Every server there is; of those that were never asked, calls are found by name.
    """
    reader = _Reader(survey, servers)
    reader.read()
    calls = sorted(reader.calls, key=lambda call: (call.line, call.column))
    places = sorted(set(reader.open), key=lambda place: (place.line, place.why))
    return Foreseen(
        calls=tuple(calls[:MAX_CALLS]),
        open=tuple(places[:MAX_OPEN]),
        omitted=max(0, len(calls) - MAX_CALLS) + max(0, len(places) - MAX_OPEN),
    )


class _Reader:
    def __init__(self, survey: Survey, servers: Sequence[ServerEntry]) -> None:
        self._survey = survey
        self._meanings = Meanings(self._survey, {server.alias: server for server in servers})
        self._given = GivenReader(self._survey)
        self._accounted: set[int] = set()
        self._accepted: dict[tuple[str, str], Arguments] = {}
        self.calls: list[ForeseenCall] = []
        self.open: list[OpenPlace] = []

    def read(self) -> None:
        """Find the calls first; what else is made of a tool or a server is not seen through."""
        for node, place in self._survey.each(ast.Call):
            self._call(node, place)
        self._bindings()
        # Names last: what they are taken for has then been seen.
        for node, place in self._survey.each(ast.Attribute, ast.Subscript, ast.Name):
            if id(node) not in self._accounted and isinstance(node.ctx, ast.Load):
                self._mention(node, place)
        if self._survey.tricky:
            self._anything(1, "it uses what can call things by computed names (eval, importlib, …)")
        for node, _ in self._survey.each(ast.ImportFrom):
            module = node.module or ""
            if module.startswith("mcp") and any(item.name == "*" for item in node.names):
                self._anything(node.lineno, f"it imports every name of {module}")

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, place: Place) -> None:
        meaning = self._meanings.of(node.func, place)
        if meaning is not None and meaning.kind == TOOL:
            assert meaning.server is not None
            assert meaning.tool is not None
            self._account(node.func)
            tool = meaning.tool.tool
            accepted = self._arguments(meaning.server, tool)
            self._found(
                node, place, meaning.server.name, tool, self._given.bound(node, accepted, place)
            )
        elif meaning is not None and meaning.kind == HELPER and meaning.helper is not None:
            self._account(node.func)
            self._helper(node, meaning, place)
        elif isinstance(node.func, ast.Attribute):
            self._unasked(node, node.func, place)

    def _unasked(self, node: ast.Call, function: ast.Attribute, place: Place) -> None:
        """A call of a server that was never asked for its tools."""
        base = self._meanings.of(function.value, place)
        if base is None or base.kind != SERVER or base.server is None or base.server.known:
            return
        self._account(function)
        given = Given(open=bool(node.args))
        self._given.by_keyword(given, node.keywords, None, place)
        self._found(node, place, base.server.name, function.attr, given)

    def _helper(self, node: ast.Call, meaning: Meaning, place: Place) -> None:
        assert meaning.helper is not None
        name = meaning.helper.name
        if name not in BY_NAME and name not in _REQUESTS:
            return
        bound = self._positions(node, meaning.helper.positional)
        if bound is None:
            self._anything(node.lineno, f"{meaning.name} with arguments that cannot be seen")
            return
        if meaning.helper.owner == "runtime":
            server = self._server(bound.get("server"), place)
        else:
            assert isinstance(node.func, ast.Attribute | ast.Name)
            server = self._owner(node.func, place)
        if name == "read_resource" and "uri" not in bound and meaning.helper.owner == "runtime":
            self._anything(node.lineno, "a resource whose server is found out by its address")
        elif server is None:
            self._anything(node.lineno, f"{meaning.name} with a server that is computed")
        elif name in BY_NAME:
            self._by_name(node, server, bound, place)
        else:
            self._request(node, server, name, bound, place)

    def _by_name(
        self, node: ast.Call, server: ServerEntry, bound: Mapping[str, ast.expr], place: Place
    ) -> None:
        known, name = self._given.value(bound["tool"], place) if "tool" in bound else (False, None)
        if not known or not isinstance(name, str):
            self._any_tool(node.lineno, server, "the tool's name is computed")
            return
        entry = server.named(name)
        arguments, given = bound.get("arguments"), Given()
        if isinstance(arguments, ast.Dict):
            self._given.by_dict(given, arguments, place)
        elif arguments is not None:
            given.open = not (isinstance(arguments, ast.Constant) and arguments.value is None)
        self._found(node, place, server.name, entry.tool if entry else name, given)

    def _request(
        self,
        node: ast.Call,
        server: ServerEntry,
        helper: str,
        bound: Mapping[str, ast.expr],
        place: Place,
    ) -> None:
        method, first = _REQUESTS[helper]
        # What is asked for besides is not seen here.
        given = Given(open=helper in ("watch_resource", "complete"))
        if helper == "complete":
            known, ref = self._given.value(bound["ref"], place) if "ref" in bound else (False, None)
            if not known or not isinstance(ref, str):
                self._anything(node.lineno, "a completion of what is computed")
                return
            if ":" in ref or "{" in ref:
                method, first = READ_RESOURCE, "uri"
            bound = {first: bound["ref"]}
        for name in (first, "arguments"):
            if name in bound:
                self._given.take(given, name, bound[name], None, place)
        if helper == "read_resource" and set(bound) - {"server", "uri"}:
            # Filled into a template.
            given.seen.pop("uri", None)
            given.unseen = ["uri"]
        self._found(node, place, server.name, method, given)

    def _found(
        self, node: ast.expr, place: Place, server: str, tool: Tool | str, given: Given
    ) -> None:
        self.calls.append(
            ForeseenCall(
                line=node.lineno,
                column=node.col_offset,
                server=server,
                tool=tool if isinstance(tool, str) else tool.name,
                arguments=given.seen,
                unseen=tuple(dict.fromkeys(given.unseen)),
                open=given.open,
                definition=None if isinstance(tool, str) else tool,
                loops=place.loops,
                deferred=_is_deferred(place),
            )
        )

    def _arguments(self, server: ServerEntry, tool: Tool) -> Arguments:
        key = (server.alias, tool.name)
        if key not in self._accepted:
            self._accepted[key] = arguments_of(tool.input_schema)
        return self._accepted[key]

    # --- whatever is not seen through ------------------------------------------------------------

    def _positions(self, node: ast.Call, names: Sequence[str]) -> dict[str, ast.expr] | None:
        """Return a helper's arguments by name; None if some are unpacked."""
        if any(isinstance(item, ast.Starred) for item in node.args):
            return None
        if any(keyword.arg is None for keyword in node.keywords):
            return None
        found = dict(zip(names, node.args, strict=False))
        found.update({str(keyword.arg): keyword.value for keyword in node.keywords})
        return found

    def _server(self, node: ast.expr | None, place: Place) -> ServerEntry | None:
        if node is None:
            return None
        known, name = self._given.value(node, place)
        return self._meanings.named_server(name) if known and isinstance(name, str) else None

    def _owner(self, function: ast.Attribute | ast.Name, place: Place) -> ServerEntry | None:
        if isinstance(function, ast.Attribute):
            base = self._meanings.of(function.value, place)
            if base is not None and base.kind == SERVER:
                return base.server
        label = self._meanings.of(function, place)
        alias = label.name.partition(".")[0].removeprefix("mcp_") if label is not None else ""
        return self._meanings.imported_server(alias)

    def _account(self, node: ast.expr) -> None:
        """Note that what a call is made through is seen through, with all that it is taken of."""
        self._accounted.add(id(node))
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            self._accounted.add(id(node))

    def _bindings(self) -> None:
        """Note what only gets another name: calls through that are seen."""
        for node, place in self._survey.each(ast.Assign):
            if all(
                isinstance(target, ast.Name) and self._meanings.of(target, place) is not None
                for target in node.targets
            ):
                self._account(node.value)

    def _mention(self, node: ast.Name | ast.Attribute | ast.Subscript, place: Place) -> None:
        meaning = self._meanings.of(node, place)
        if meaning is None:
            if isinstance(node, ast.Attribute):
                # `runtime.MCPError`: what is taken of these is seen, or is nothing to be called.
                base = self._meanings.of(node.value, place)
                if base is not None and base.kind in (RUNTIME, PACKAGE):
                    self._account(node.value)
                elif base is not None and base.kind == SERVER and base.server is not None:
                    self._account(node)
                    why = f"it is not known to have a tool {clip(node.attr, _MAX_NAME_CHARS)!r}"
                    self._any_tool(node.lineno, base.server, why)
            return
        if isinstance(node, ast.Attribute | ast.Subscript):
            # Told once, of the whole expression.
            self._account(node)
        if meaning.kind == TOOL and meaning.server is not None and meaning.tool is not None:
            self._found(node, place, meaning.server.name, meaning.tool.tool, Given(open=True))
        elif meaning.kind == SERVER and meaning.server is not None:
            self._any_tool(node.lineno, meaning.server, "the server is used as a whole")
        elif meaning.kind == HELPER and meaning.helper is not None:
            if meaning.helper.name in BY_NAME or meaning.helper.name in _REQUESTS:
                self._anything(node.lineno, f"{meaning.name} is passed on")
        elif meaning.kind in (SERVERS, PACKAGE, RUNTIME):
            self._anything(node.lineno, "it picks among the servers while it runs")

    def _any_tool(self, line: int, server: ServerEntry, why: str) -> None:
        self.open.append(OpenPlace(line=line, server=server.name, why=why))

    def _anything(self, line: int, why: str) -> None:
        self.open.append(OpenPlace(line=line, why=valid_text(clip(why, _MAX_NAME_CHARS))))


def _is_deferred(place: Place) -> bool:
    """Return whether something is done when a function is called, or a generator gone through."""
    scope: Scope | None = place.scope
    while scope is not None:
        if scope.kind == "function" or scope.generator:
            return True
        scope = scope.parent
    return False
