"""What the expressions of a program stand for, as far as they concern tools.

Owns the way from `gh = mcp_github` and `gh.search(...)` to the tool, and to what a call of it is:
something that has to be awaited. An expression of which it cannot be told stands for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.catalog.checking.places import Bound, Place, Scope
from bridge.catalog.checking.survey import Survey
from bridge.catalog.checking.tables import (
    COROUTINES,
    FUTURES,
    GLOBAL_HELPERS,
    HELPERS,
    NOT_OF_MODULES,
    SERVER_METHODS,
    Helper,
)
from bridge.catalog.entries import ServerEntry, ToolEntry

MAX_DEPTH = 12
"""Names followed for one meaning: `a = b; b = c; ...`, and what these are taken from."""

_SPEAKING = frozenset({ast.Attribute, ast.Await, ast.Call, ast.Name, ast.Subscript})

SERVER = "server"
TOOL = "tool"
HELPER = "helper"
RUNTIME = "runtime"
PACKAGE = "package"
SERVERS = "servers"
MODULES = "modules"
FUNCTION = "function"
BUILTIN = "builtin"
MEMBER = "member"
COROUTINE = "coroutine"
FUTURE = "future"
RESULT = "result"


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What an expression stands for.

    Attributes:
        kind: One of the names above.
        name: Of a builtin, or dotted of a member of a module; for messages, of whatever was called.
            Two meanings of one kind and name are the same.
    """

    kind: str
    name: str = ""
    server: ServerEntry | None = field(default=None, compare=False)
    tool: ToolEntry | None = field(default=None, compare=False)
    helper: Helper | None = field(default=None, compare=False)
    function: ast.AST | None = None
    as_module: bool = False


_UNASKED = Meaning(kind="")


class Meanings:
    """Finds what expressions of one program stand for."""

    def __init__(self, survey: Survey, servers: Mapping[str, ServerEntry]) -> None:
        self._survey = survey
        self._servers = servers
        self._tools: dict[str, dict[str, ToolEntry]] = {}
        self._generators = _generators(survey)
        self._named: dict[tuple[int, str], Meaning | None] = {}
        self._found: dict[int, Meaning | None] = {}
        self._bare: dict[str, Meaning | None] = {}

    def of(self, node: ast.expr, place: Place) -> Meaning | None:
        """Return what an expression stands for; None if that cannot be told."""
        if type(node) not in _SPEAKING:
            return None
        # Every check asks anew, and each node has one place.
        key = id(node)
        found = self._found.get(key, _UNASKED)
        if found is _UNASKED:
            found = self._found[key] = self._of(node, place, MAX_DEPTH)
        return found

    def _of(self, node: ast.expr, place: Place, depth: int) -> Meaning | None:
        if depth <= 0:
            return None
        if isinstance(node, ast.Name):
            return self._name(node.id, place, depth)
        if isinstance(node, ast.Attribute):
            base = self._of(node.value, place, depth - 1)
            return None if base is None else self._attribute(base, node.attr)
        if isinstance(node, ast.Call):
            called = self._of(node.func, place, depth - 1)
            return None if called is None else _called(called, self._generators)
        if isinstance(node, ast.Subscript):
            return self._item(node, place, depth)
        if isinstance(node, ast.Await):
            awaited = self._of(node.value, place, depth - 1)
            if awaited is not None and awaited.kind == COROUTINE and awaited.tool is not None:
                return Meaning(
                    kind=RESULT, name=awaited.name, server=awaited.server, tool=awaited.tool
                )
        return None

    def tools(self, server: ServerEntry) -> Mapping[str, ToolEntry]:
        """Return a server's tools by alias."""
        found = self._tools.get(server.alias)
        if found is None:
            found = self._tools[server.alias] = {entry.alias: entry for entry in server.tools}
        return found

    def imported_server(self, alias: str) -> ServerEntry | None:
        """Return the server whose module goes by a name."""
        return self._servers.get(alias)

    def named_server(self, name: str) -> ServerEntry | None:
        """Return the server that a text names, as the helpers take it: by name or by alias."""
        for alias, server in self._servers.items():
            if name in (server.name, alias, f"mcp_{alias}"):
                return server
        return None

    def is_builtin(self, node: ast.expr, names: frozenset[str]) -> bool:
        """Return whether an expression is one of these builtins, which nothing in it replaces."""
        return isinstance(node, ast.Name) and node.id in names and node.id not in self._survey.names

    def _name(self, name: str, place: Place, depth: int) -> Meaning | None:
        if name in self._survey.shared:
            return None
        owner = self._survey.owner(name, place)
        if owner is None:
            if name not in self._bare:
                self._bare[name] = self._unbound(name)
            return self._bare[name]
        key = (id(owner), name)
        if key not in self._named:
            # While it is being found out, a name that refers to itself means nothing.
            self._named[key] = None
            self._named[key] = self._agreed(owner, name, depth)
        return self._named[key]

    def _agreed(self, owner: Scope, name: str, depth: int) -> Meaning | None:
        """Return what all that a name is given stands for; None if that differs."""
        agreed: Meaning | None = None
        for value, place in owner.bound[name]:
            meaning = self._bound(value, place, depth - 1)
            if meaning is None or (agreed is not None and meaning != agreed):
                return None
            agreed = meaning
        return agreed

    def _bound(self, value: Bound, place: Place, depth: int) -> Meaning | None:
        if isinstance(value, str):
            return self._imported(value.removeprefix("import:"))
        if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef):
            return Meaning(kind=FUNCTION, name=value.name, function=value)
        if isinstance(value, ast.expr) and not isinstance(value, ast.Lambda):
            return self._of(value, place, depth)
        return None

    def _unbound(self, name: str) -> Meaning | None:
        if name.startswith("mcp_"):
            if name == "mcp_servers":
                return Meaning(kind=SERVERS)
            server = self._servers.get(name.removeprefix("mcp_"))
            return None if server is None else _server(server)
        if name == "runtime":
            return Meaning(kind=RUNTIME)
        if name == "mcp":
            return Meaning(kind=PACKAGE)
        if name in self._survey.names:
            return None
        if name in GLOBAL_HELPERS:
            return _helper(HELPERS[name], name)
        return Meaning(kind=BUILTIN, name=name)

    def _imported(self, dotted: str) -> Meaning | None:
        parts = dotted.split(".")
        if parts[0] != "mcp":
            return Meaning(kind=MEMBER, name=dotted)
        meaning: Meaning | None = Meaning(kind=PACKAGE)
        for part in parts[1:]:
            if meaning is None:
                return None
            meaning = self._attribute(meaning, part)
        return meaning

    def _attribute(self, base: Meaning, name: str) -> Meaning | None:
        if name in self._survey.stored:
            return None
        if base.kind == SERVER and base.server is not None:
            return self._of_server(base, name)
        if base.kind == RUNTIME:
            helper = HELPERS.get(name)
            return None if helper is None else _helper(helper, f"runtime.{name}")
        if base.kind == PACKAGE:
            kinds = {"runtime": RUNTIME, "servers": MODULES}
            return Meaning(kind=kinds[name]) if name in kinds else None
        if base.kind == MODULES:
            server = self._servers.get(name)
            return None if server is None else _server(server, as_module=True)
        if base.kind == MEMBER:
            return Meaning(kind=MEMBER, name=f"{base.name}.{name}")
        return None

    def _of_server(self, base: Meaning, name: str) -> Meaning | None:
        assert base.server is not None
        entry = self.tools(base.server).get(name)
        if entry is not None:
            label = f"mcp_{base.server.alias}.{name}"
            return Meaning(kind=TOOL, name=label, server=base.server, tool=entry)
        hidden = base.as_module and name in NOT_OF_MODULES
        helper = None if hidden else SERVER_METHODS.get(name)
        return None if helper is None else _helper(helper, f"mcp_{base.server.alias}.{name}")

    def _item(self, node: ast.Subscript, place: Place, depth: int) -> Meaning | None:
        key = node.slice
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        base = self._of(node.value, place, depth - 1)
        if base is None:
            return None
        if base.kind == SERVERS:
            for alias, server in self._servers.items():
                if key.value in (server.name, alias):
                    return _server(server)
        if base.kind == SERVER and base.server is not None and not base.as_module:
            for entry in base.server.tools:
                if key.value == entry.tool.name:
                    return self._of_server(base, entry.alias)
            if key.value in self.tools(base.server):
                return self._of_server(base, key.value)
        return None


def _server(server: ServerEntry, *, as_module: bool = False) -> Meaning:
    return Meaning(kind=SERVER, name=f"mcp_{server.alias}", server=server, as_module=as_module)


def _helper(helper: Helper, label: str) -> Meaning:
    return Meaning(kind=HELPER, name=label, helper=helper)


def _called(called: Meaning, generators: frozenset[int]) -> Meaning | None:
    """Return what the call of something stands for."""
    if called.kind == TOOL:
        return Meaning(kind=COROUTINE, name=called.name, server=called.server, tool=called.tool)
    if called.kind == HELPER and called.helper is not None and called.helper.asynchronous:
        return Meaning(kind=COROUTINE, name=called.name, helper=called.helper)
    if called.kind == FUNCTION and isinstance(called.function, ast.AsyncFunctionDef):
        if id(called.function) in generators:
            return None
        return Meaning(kind=COROUTINE, name=called.name, function=called.function)
    if called.kind == MEMBER and called.name in COROUTINES:
        return Meaning(kind=COROUTINE, name=called.name)
    if called.kind == MEMBER and called.name in FUTURES:
        return Meaning(kind=FUTURE, name=called.name)
    return None


def _generators(survey: Survey) -> frozenset[int]:
    scopes = (place.scope.function() for _, place in survey.each(ast.Yield, ast.YieldFrom))
    return frozenset(id(scope.node) for scope in scopes if scope.generator)
