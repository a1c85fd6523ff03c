"""What the expressions of a program stand for: modules' members, builtins, servers, tools, texts.

Owns the way from `gh = mcp_github` and `gh.search(...)` to the tool and to what a call of it is,
and from `o.system` to `os.system` after `import os as o`. An expression of which it cannot be told
stands for nothing. A program decides how deep and how long everything in it is, so finding a
meaning has a bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.survey import Bound, Place, Scope, Survey
from bridge.catalog.program.tables import (
    COROUTINES,
    FUTURES,
    GLOBAL_HELPERS,
    HELPERS,
    NOT_OF_MODULES,
    SERVER_METHODS,
    Helper,
)

MAX_DEPTH = 12
"""Names followed for one meaning: `a = b; b = c; ...`, and what these are taken from."""

MAX_STEPS = 100
"""Parts looked at for one text; a path put together by hand has ten."""

MAX_MEANINGS = 4
"""Things that one name may stand for, as after `try: import a as x` and `except: import b as x`."""

MAX_TEXT_CHARS = 4096
"""Longer texts name neither a module, nor an attribute, nor a file."""

_SPEAKING = frozenset({ast.Attribute, ast.Call, ast.Name, ast.Subscript})

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

IMPORTERS = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
"""Functions that import what they are given."""

_JOINS = frozenset({"os.path.join", "posixpath.join", "pathlib.Path"})
_SAME_TEXT = frozenset({"builtins.str", "os.fspath", "os.path.expanduser", "os.path.realpath"})


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

    @property
    def dotted(self) -> str:
        """The dotted name of a builtin or of a module's member; empty for anything else."""
        if self.kind == BUILTIN:
            return f"builtins.{self.name}"
        return self.name if self.kind == MEMBER else ""


Found = tuple[Meaning | None, ...]
"""All that something may stand for; None among them stands for whatever cannot be told."""

UNKNOWN: Found = (None,)


class Meanings:
    """Finds what expressions of one program stand for."""

    def __init__(self, survey: Survey, servers: Mapping[str, ServerEntry]) -> None:
        self._survey = survey
        self._servers = servers
        self._tools: dict[str, dict[str, ToolEntry]] = {}
        self._named: dict[tuple[int, str], Found] = {}
        self._found: dict[int, Found] = {}
        self._left = 0

    def of(self, node: ast.expr, place: Place) -> Meaning | None:
        """Return what an expression stands for, and nothing else; None if that cannot be told."""
        found = self.all_of(node, place)
        return found[0] if len(found) == 1 else None

    def dotted(self, node: ast.expr, place: Place) -> tuple[str, ...]:
        """Return the builtins and members of modules that an expression may be ("os.system")."""
        return tuple(one.dotted for one in self.all_of(node, place) if one and one.dotted)

    def all_of(self, node: ast.expr, place: Place) -> Found:
        """Return all that an expression may stand for."""
        if type(node) not in _SPEAKING:
            return UNKNOWN
        # Every rule asks anew, and each node has one place.
        found = self._found.get(id(node))
        if found is None:
            self._left = MAX_STEPS
            found = self._found[id(node)] = self._of(node, place, MAX_DEPTH)
        return found

    def text(self, node: ast.expr, place: Place) -> str | None:
        """Return the text that an expression is, or the path; None if only running it can tell."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value if len(node.value) <= MAX_TEXT_CHARS else None
        self._left = MAX_STEPS
        return self._text(node, place)

    def start(self, node: ast.expr, place: Place) -> str:
        """Return how the text that an expression puts together begins; empty if unknown."""
        for _ in range(MAX_STEPS):
            if isinstance(node, ast.BinOp):
                node = node.left
            elif isinstance(node, ast.JoinedStr) and node.values:
                node = node.values[0]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                # "mcp.servers.{}".format(name)
                node = node.func.value
            else:
                break
        return self.text(node, place) or ""

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

    # --- what an expression may be ---------------------------------------------------------------

    def _of(self, node: ast.expr, place: Place, depth: int) -> Found:
        if depth <= 0:
            return UNKNOWN
        if isinstance(node, ast.Name):
            return self._name(node.id, place, depth)
        if isinstance(node, ast.Attribute):
            bases = self._of(node.value, place, depth - 1)
            return _each(self._attribute(base, node.attr) for base in bases)
        if isinstance(node, ast.Call):
            return self._called(node, place, depth - 1)
        if isinstance(node, ast.Subscript):
            return self._item(node, place, depth - 1)
        return UNKNOWN

    def _name(self, name: str, place: Place, depth: int) -> Found:
        owner = self._survey.owner(name, place)
        if owner is None:
            found = self._unbound(name)
            stars = self._survey.stars if found is not None and found.kind == BUILTIN else ()
            return _each([found, *(self._imported(f"{star}.{name}") for star in stars if star)])
        key = (id(owner), name)
        if key not in self._named:
            # While it is being found out, a name that refers to itself means nothing.
            self._named[key] = UNKNOWN
            self._named[key] = self._given(owner, name, depth)
        return self._named[key]

    def _given(self, owner: Scope, name: str, depth: int) -> Found:
        """Return what all that a name is given stands for."""
        found: list[Meaning | None] = [None] if name in self._survey.shared else []
        for value, place in owner.bound[name]:
            found += self._bound(value, place, depth - 1)
        return _each(found)

    def _bound(self, value: Bound, place: Place, depth: int) -> Found:
        if isinstance(value, str):
            return (self._imported(value),)
        if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef):
            return (Meaning(kind=FUNCTION, name=value.name, function=value),)
        if isinstance(value, ast.expr) and not isinstance(value, ast.Lambda):
            return self._of(value, place, depth)
        return UNKNOWN

    def _unbound(self, name: str) -> Meaning | None:
        if name == "mcp_servers":
            return Meaning(kind=SERVERS)
        if name.startswith("mcp_"):
            server = self._servers.get(name.removeprefix("mcp_"))
            return None if server is None else _server(server)
        if name == "runtime":
            return Meaning(kind=RUNTIME)
        if name == "mcp":
            return Meaning(kind=PACKAGE)
        if name in GLOBAL_HELPERS and name not in self._survey.names:
            return _helper(HELPERS[name], name)
        return Meaning(kind=BUILTIN, name=name)

    def _imported(self, dotted: str) -> Meaning | None:
        parts = dotted.split(".")
        if parts[0] == "builtins" and len(parts) == 2:
            return Meaning(kind=BUILTIN, name=parts[1])
        if parts[0] != "mcp":
            return Meaning(kind=MEMBER, name=dotted)
        meaning: Meaning | None = Meaning(kind=PACKAGE)
        for part in parts[1:]:
            meaning = self._attribute(meaning, part)
        return meaning

    def _attribute(self, base: Meaning | None, name: str) -> Meaning | None:
        if base is None:
            return None
        if base.kind == MEMBER:
            return self._imported(f"{base.name}.{name}")
        if name in self._survey.stored:
            return None
        if base.kind == SERVER and base.server is not None:
            return self._of_server(base, base.server, name)
        if base.kind == RUNTIME:
            helper = HELPERS.get(name)
            return None if helper is None else _helper(helper, f"runtime.{name}")
        if base.kind == PACKAGE:
            kinds = {"runtime": RUNTIME, "servers": MODULES}
            return Meaning(kind=kinds[name]) if name in kinds else None
        if base.kind == MODULES:
            server = self._servers.get(name)
            return None if server is None else _server(server, as_module=True)
        return None

    def _of_server(self, base: Meaning, server: ServerEntry, name: str) -> Meaning | None:
        label = f"mcp_{server.alias}.{name}"
        entry = self.tools(server).get(name)
        if entry is not None:
            return Meaning(kind=TOOL, name=label, server=server, tool=entry)
        hidden = base.as_module and name in NOT_OF_MODULES
        helper = None if hidden else SERVER_METHODS.get(name)
        return None if helper is None else _helper(helper, label)

    def _called(self, node: ast.Call, place: Place, depth: int) -> Found:
        """Return what the call of something stands for."""
        found: list[Meaning | None] = []
        for called in self._of(node.func, place, depth):
            dotted = called.dotted if called else ""
            if dotted in IMPORTERS and node.args:
                name = self._text(node.args[0], place)
                if name and dotted != "importlib.import_module" and len(node.args) == 1:
                    name = name.partition(".")[0]
                found.append(self._imported(name) if name else None)
            elif dotted == "builtins.getattr" and len(node.args) > 1:
                name = self._text(node.args[1], place)
                owners = self._of(node.args[0], place, depth) if name else UNKNOWN
                found += [self._attribute(owner, name or "") for owner in owners]
            else:
                found.append(None if called is None else self._awaited(called))
        return _each(found)

    def _awaited(self, called: Meaning) -> Meaning | None:
        """Return the call of a tool or an async function as what has to be awaited."""
        function = called.function
        own = isinstance(function, ast.AsyncFunctionDef) and id(function) not in self._generators
        helper = called.helper is not None and called.helper.asynchronous
        if called.kind == TOOL or own or helper or called.dotted in COROUTINES:
            return Meaning(
                kind=COROUTINE,
                name=called.name,
                server=called.server,
                tool=called.tool,
                helper=called.helper,
                function=called.function,
            )
        return Meaning(kind=FUTURE, name=called.name) if called.dotted in FUTURES else None

    @cached_property
    def _generators(self) -> frozenset[int]:
        return frozenset(id(s.node) for s in self._survey.functions if s.generator)

    def _item(self, node: ast.Subscript, place: Place, depth: int) -> Found:
        key = self._text(node.slice, place)
        if key is None:
            return UNKNOWN
        value = node.value
        # `os.__dict__["system"]`, `vars(os)["system"]`
        if isinstance(value, ast.Attribute) and value.attr == "__dict__":
            owners = self._of(value.value, place, depth)
            return _each(self._attribute(owner, key) for owner in owners)
        if isinstance(value, ast.Call) and len(value.args) == 1:
            functions = self._of(value.func, place, depth)
            if any(one is not None and one.dotted == "builtins.vars" for one in functions):
                owners = self._of(value.args[0], place, depth)
                return _each(self._attribute(owner, key) for owner in owners)
        return _each(self._of_base(base, key) for base in self._of(value, place, depth))

    def _of_base(self, base: Meaning | None, key: str) -> Meaning | None:
        if base is None:
            return None
        if base.dotted == "sys.modules":
            return self._imported(key)
        if base.kind == SERVERS:
            by_name = (s for s in self._servers.values() if key in (s.name, s.alias))
            server = next(by_name, None)
            return None if server is None else _server(server)
        if base.kind == SERVER and base.server is not None and not base.as_module:
            entry = base.server.named(key)
            return None if entry is None else self._of_server(base, base.server, entry.alias)
        return None

    # --- texts -----------------------------------------------------------------------------------

    def _text(self, node: ast.expr, place: Place) -> str | None:
        self._left -= 1
        if self._left < 0:
            return None
        parts = self._parts(node, place)
        if parts is None:
            return None
        pieces = []
        for part, at in parts:
            piece = part if isinstance(part, str) else self._text(part, at)
            if piece is None:
                return None
            pieces.append(piece)
        whole = "".join(pieces)
        return whole if len(whole) <= MAX_TEXT_CHARS else None

    def _parts(self, node: ast.expr, place: Place) -> Sequence[tuple[ast.expr | str, Place]] | None:
        """Return what a text is put together from; None if it cannot be told."""
        parts: Sequence[ast.expr | str] | None = None
        match node:
            case ast.Constant(value=str() as text):
                parts = (text,)
            case ast.Constant(value=bytes() as data):
                parts = (data.decode("utf-8", "replace"),)
            case ast.Name():
                owner = self._survey.owner(node.id, place)
                bound = owner.bound[node.id] if owner is not None else ()
                value, at = bound[0] if len(bound) == 1 else (None, place)
                return ((value, at),) if isinstance(value, ast.expr) else None
            case ast.BinOp(op=ast.Add()):
                parts = (node.left, node.right)
            case ast.BinOp(op=ast.Div()):
                # Dividing texts is what paths do.
                parts = (node.left, "/", node.right)
            case ast.JoinedStr():
                parts = node.values[:MAX_STEPS]
            case ast.FormattedValue(conversion=-1, format_spec=None):
                parts = (node.value,)
            case ast.Call() if node.args and not node.keywords:
                parts = self._call_parts(node, place)
        return None if parts is None else [(part, place) for part in parts]

    def _call_parts(self, node: ast.Call, place: Place) -> Sequence[ast.expr | str] | None:
        function, arguments = node.func, node.args
        if isinstance(function, ast.Attribute) and function.attr == "join":
            separator, given = function.value, arguments[0]
            if isinstance(separator, ast.Constant) and isinstance(separator.value, str):
                items = given.elts if isinstance(given, ast.List | ast.Tuple) else None
                return None if items is None else _between(items[:MAX_STEPS], separator.value)
        dotted = [one.dotted for one in self._of(function, place, 3) if one is not None]
        if not _JOINS.isdisjoint(dotted):
            return _between(arguments[:MAX_STEPS], "/")
        return None if _SAME_TEXT.isdisjoint(dotted) else arguments[:1]


def _each(found: Iterable[Meaning | None]) -> Found:
    """Return meanings, each once; so many that one is cut off mean something unknown as well."""
    every = tuple(dict.fromkeys(found))
    return every if len(every) <= MAX_MEANINGS else (*every[: MAX_MEANINGS - 1], None)


def _server(server: ServerEntry, *, as_module: bool = False) -> Meaning:
    return Meaning(kind=SERVER, name=f"mcp_{server.alias}", server=server, as_module=as_module)


def _helper(helper: Helper, label: str) -> Meaning:
    return Meaning(kind=HELPER, name=label, helper=helper)


def _between(items: Sequence[ast.expr], separator: str) -> list[ast.expr | str]:
    parts: list[ast.expr | str] = []
    for item in items:
        parts += [separator, item] if parts else [item]
    return parts or [""]
