"""Resolves a program's expressions to symbols: modules' members, builtins, servers, tools, texts.

After `gh = mcp_github` it resolves `gh.search` to the tool. Depth and steps are bounded, since the
program decides how deeply its expressions nest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.survey import Bound, Context, Survey
from bridge.guest.protocol.helpers import GLOBAL_HELPERS, LINES, OF_SERVERS
from bridge.text import clip, valid_text


@dataclass(frozen=True, kw_only=True)
class Helper:
    """A function that programs may call."""

    name: str
    asynchronous: bool
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    required: int = 0  # How many of `positional` have no default.
    open: bool = False  # Whether it takes any other keyword.
    owner: str = "runtime"

    @property
    def signature(self) -> str:
        parts = list(self.positional[: self.required])
        parts += [f"{name}=..." for name in self.positional[self.required :]]
        if self.keywords:
            parts += ["*", *(f"{name}=..." for name in self.keywords)]
        if self.open:
            parts.append("**values")
        call = f"{self.owner}.{self.name}({', '.join(parts)})"
        return f"await {call}" if self.asynchronous else call


def _read_helper(line: str) -> Helper:
    """Read a line such as "async name(a, b=, *, c=)"; a `...` at the end takes any name."""
    head, _, rest = line.partition("(")
    before, _, after = rest.rstrip(")").partition("...")[0].partition("*")
    listed = [item.strip() for item in before.split(",") if item.strip()]
    return Helper(
        name=head.removeprefix("async "),
        asynchronous=head.startswith("async "),
        positional=tuple(item.rstrip("=") for item in listed),
        keywords=tuple(i.strip().rstrip("=") for i in after.split(",") if i.strip()),
        required=sum(not item.endswith("=") for item in listed),
        open="..." in rest,
    )


HELPERS: Mapping[str, Helper] = {
    one.name: one for one in map(_read_helper, LINES.strip().splitlines())
}
"""The functions of `mcp.runtime`."""

RUNTIME_TYPES = frozenset(
    {"ArgumentsError", "Blob", "MCPError", "MissingKeyError", "Result", "UnknownNameError"}
)

BY_NAME = frozenset({"call_tool", "call_tool_raw"})
"""Helpers that take a tool's own arguments as a dict."""

SERVER_METHODS: Mapping[str, Helper] = {
    name: replace(
        HELPERS[name],
        owner="mcp_<server>",
        positional=HELPERS[name].positional[1:],
        required=min(1, len(HELPERS[name].positional[1:])),
    )
    for name in (*OF_SERVERS, "list_tools")
}
"""The methods of a server object. A tool of such a name replaces it, except `list_tools`."""

MODULE_NAMES = frozenset({"TOOLS", "TOOL_MAP"})
"""Names in `mcp.servers.<alias>` that are no tools."""


DATA_BUILTINS = frozenset(
    """
    abs all any bool bytes dict enumerate float frozenset int iter len list max min next
    range reversed round set sorted sum tuple zip
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Builtins that fail on a coroutine, or treat it as true."""

SHOWING = frozenset({"ascii", "format", "print", "repr", "str"})
"""Builtins that would show the coroutine instead of its result."""

DATA_MEMBERS = frozenset(
    """
    json.dump json.dumps json.loads pprint.pformat pprint.pp pprint.pprint collections.Counter
    pandas.DataFrame re.findall re.match re.search re.split re.sub statistics.mean
    """.split()  # noqa: SIM905 - as words they can be read
)

COROUTINES = frozenset(
    {"asyncio.sleep", "asyncio.to_thread", "asyncio.wait", "asyncio.wait_for", "anyio.sleep"}
)
"""Library functions whose calls do nothing until they are awaited."""

FUTURES = frozenset({"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather"})
"""Library functions that start at once and return something to await."""

# A program can have chains of names and texts of any length.
MAX_DEPTH = 12  # Steps followed for one symbol: names (`a = b; b = c; ...`), attributes and items.
MAX_STEPS = 100  # Parts of one text that are read; a path that a program joins has about ten.

_SPEAKING = frozenset({ast.Attribute, ast.Call, ast.Name, ast.Subscript})

Kind = Enum(
    "Kind",
    "SERVER TOOL HELPER RUNTIME PACKAGE SERVERS MODULES GETTER FUNCTION BUILTIN MEMBER COROUTINE "
    "FUTURE NO_SERVER NO_TOOL NO_HELPER",
)
"""What an expression refers to. The last three are names of missing servers, tools and helpers."""

_OF_PACKAGE = {"runtime": Kind.RUNTIME, "servers": Kind.MODULES}
_HOLDERS = frozenset({Kind.MODULES, Kind.PACKAGE, Kind.SERVERS})
_ABSENT = frozenset({Kind.NO_SERVER, Kind.NO_TOOL, Kind.NO_HELPER})
_IMPORTED = frozenset({"mcp", "runtime"})
"""Modules of a run; `mcp_<alias>` is one too."""

IMPORTERS = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})

_JOINS = frozenset({"os.path.join", "posixpath.join", "pathlib.Path"})
_SAME_TEXT = frozenset({"builtins.str", "os.fspath", "os.path.expanduser", "os.path.realpath"})


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """What an expression refers to."""

    kind: Kind
    # The name of a builtin, or the dotted name of a module's member; of any other kind, its name
    # for messages. Symbols of the same kind and name are equal.
    name: str = ""
    server: ServerEntry | None = field(default=None, compare=False)
    tool: ToolEntry | None = field(default=None, compare=False)
    helper: Helper | None = field(default=None, compare=False)
    function: ast.AST | None = None  # The definition in the program, if it is one of its functions.

    @property
    def dotted(self) -> str:
        """The dotted name of a builtin or of a module's member; empty for anything else."""
        if self.kind == Kind.BUILTIN:
            return f"builtins.{self.name}"
        return self.name if self.kind == Kind.MEMBER else ""


Found = tuple[Symbol | None, ...]
"""All symbols that an expression may refer to; None stands for something unknown."""

UNKNOWN: Found = (None,)


class SymbolResolver:
    """Resolves the expressions of one program."""

    def __init__(self, survey: Survey, servers: Mapping[str, ServerEntry]) -> None:
        self._survey = survey
        self._servers = servers
        self._generators = {id(each.node) for each in survey.functions if each.generator}
        self._named: dict[tuple[int, str], Found] = {}
        self._found: dict[int, Found] = {}
        self._left = 0
        # Whether an expression that it resolved names a server by a computed text.
        self.computes = False

    def of(self, node: ast.expr, context: Context) -> Symbol | None:
        """Return the one symbol that an expression refers to; None if it is not certain."""
        symbols = self.all_of(node, context)
        return symbols[0] if len(symbols) == 1 else None

    def dotted_names(self, node: ast.expr, context: Context) -> tuple[str, ...]:
        """Return the dotted names ("os.system") of the builtins and members that it may be."""
        return tuple(one.dotted for one in self.all_of(node, context) if one and one.dotted)

    def all_of(self, node: ast.expr, context: Context) -> Found:
        if type(node) not in _SPEAKING:
            return UNKNOWN
        # Several rules ask for the same node, and each node has one context.
        symbols = self._found.get(id(node))
        if symbols is None:
            self._left = MAX_STEPS
            symbols = self._found[id(node)] = self._of(node, context, MAX_DEPTH)
        return symbols

    def text(self, node: ast.expr, context: Context) -> str | None:
        """Return the text or path that an expression evaluates to; None if it is computed."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        self._left = MAX_STEPS
        return self._text(node, context)

    def start(self, node: ast.expr, context: Context) -> str:
        """Return the beginning of the text that an expression builds; empty if unknown."""
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
        return self.text(node, context) or ""

    def named_server(self, name: str) -> ServerEntry | None:
        """Return the server that a text names, by name or by alias, as helpers accept it."""
        for alias, server in self._servers.items():
            if name in (server.name, alias, f"mcp_{alias}"):
                return server
        return None

    def server(self, name: str) -> Symbol:
        server = self.named_server(name)
        return _no_server(name) if server is None else _server(server)

    def is_builtin(self, node: ast.expr, names: frozenset[str]) -> bool:
        """Return whether an expression is one of these builtins, not rebound by the program."""
        return isinstance(node, ast.Name) and node.id in names and node.id not in self._survey.names

    def _of(self, node: ast.expr, context: Context, depth: int) -> Found:
        if depth <= 0:
            return UNKNOWN
        if isinstance(node, ast.Name):
            return self._name(node.id, context, depth)
        if isinstance(node, ast.Attribute):
            bases = self._of(node.value, context, depth - 1)
            return _each(self._attribute(base, node.attr) for base in bases)
        if isinstance(node, ast.Call):
            return self._resolve_call(node, context, depth - 1)
        if isinstance(node, ast.Subscript):
            return self._item(node, context, depth - 1)
        return UNKNOWN

    def _name(self, name: str, context: Context, depth: int) -> Found:
        owner = self._survey.owner(name, context)
        if owner is None:
            symbol = self._unbound(name)
            stars = self._survey.stars if symbol is not None and symbol.kind == Kind.BUILTIN else ()
            imported = (self.resolve_import(f"{star}.{name}") for star in stars if star)
            return _each([symbol, *map(_present, imported)])
        key = (id(owner), name)
        if key not in self._named:
            # Until it is resolved, a name that refers to itself is unknown.
            self._named[key] = UNKNOWN
            symbols: list[Symbol | None] = [None] if name in self._survey.shared else []
            for value, at in owner.bound[name]:
                symbols += self._bound(value, at, depth - 1)
            self._named[key] = _each(symbols)
        return self._named[key]

    def _bound(self, value: Bound, context: Context, depth: int) -> Found:
        if isinstance(value, str):
            return (self.resolve_import(value),)
        if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef):
            return (Symbol(kind=Kind.FUNCTION, name=value.name, function=value),)
        if isinstance(value, ast.expr) and not isinstance(value, ast.Lambda):
            return self._of(value, context, depth)
        return UNKNOWN

    def _unbound(self, name: str) -> Symbol | None:
        if name in self._survey.given:
            return self._path(self._survey.given[name])
        if name == "mcp_servers":
            return Symbol(kind=Kind.SERVERS)
        if name.startswith("mcp_"):
            server = self._servers.get(name.removeprefix("mcp_"))
            if server is None and not self._survey.stars and name not in self._survey.names:
                return Symbol(kind=Kind.NO_SERVER, name=name)
            return None if server is None else _server(server)
        if name == "runtime":
            return Symbol(kind=Kind.RUNTIME)
        if name == "mcp":
            return Symbol(kind=Kind.PACKAGE)
        if name in GLOBAL_HELPERS and name not in self._survey.names:
            return _helper(HELPERS[name], name)
        return Symbol(kind=Kind.BUILTIN, name=name)

    def resolve_import(self, dotted: str) -> Symbol | None:
        """Return what an import of a module, or of a module's member, binds."""
        first, _, rest = dotted.partition(".")
        if first == "builtins" and rest and "." not in rest:
            return Symbol(kind=Kind.BUILTIN, name=rest)
        if first.startswith("mcp_"):
            # `import mcp_github` is `import mcp.servers.github`; others are the program's own.
            symbol = self._path(f"mcp.servers.{dotted[4:]}")
            return None if symbol and symbol.kind == Kind.NO_SERVER else symbol
        return self._path(dotted) if first in _IMPORTED else Symbol(kind=Kind.MEMBER, name=dotted)

    def _path(self, path: str) -> Symbol | None:
        if " " in path:
            # `import json`, `from pathlib import Path`, `import numpy as np`.
            words = path.split()
            return self.resolve_import(".".join(words[1:4:2]) if words[0] == "from" else words[1])
        first, *rest = path.split(".")
        symbol = self._unbound(first)
        for part in rest:
            symbol = self._attribute(symbol, part)
        return symbol

    def _attribute(self, base: Symbol | None, name: str) -> Symbol | None:
        if base is None:
            return None
        if base.kind == Kind.MEMBER:
            return self.resolve_import(f"{base.name}.{name}")
        if base.kind == Kind.NO_SERVER:
            return base
        if name in self._survey.stored:
            return None
        if base.kind == Kind.SERVERS and name == "get":
            return Symbol(kind=Kind.GETTER)
        if base.kind == Kind.SERVER and base.server is not None:
            return self._of_server(base.server, name)
        if base.kind == Kind.PACKAGE and name in _OF_PACKAGE:
            return Symbol(kind=_OF_PACKAGE[name])
        if name in HELPERS and base.kind in (Kind.RUNTIME, Kind.PACKAGE):
            return _helper(HELPERS[name], f"runtime.{name}")
        if base.kind in _HOLDERS and name in self._servers:
            return _server(self._servers[name])
        if name.startswith("_") or name in RUNTIME_TYPES:
            return None
        if base.kind == Kind.MODULES:
            return _no_server(name)
        return Symbol(kind=Kind.NO_HELPER, name=name) if base.kind == Kind.RUNTIME else None

    def _of_server(self, server: ServerEntry, name: str) -> Symbol | None:
        entry = server.by_alias.get(name)
        if entry is None:
            if name in SERVER_METHODS:
                symbol = _helper(SERVER_METHODS[name], f"mcp_{server.alias}.{name}")
                return replace(symbol, server=server)
            if name in MODULE_NAMES or name.startswith("_"):
                return None
            if name == "tools":
                return _server(server)
            entry = server.find_tool(name)
        if entry is None:
            return Symbol(kind=Kind.NO_TOOL, name=name, server=server)
        label = f"mcp_{server.alias}.{entry.alias}"
        return Symbol(kind=Kind.TOOL, name=label, server=server, tool=entry)

    def _resolve_call(self, node: ast.Call, context: Context, depth: int) -> Found:
        function, argument = node.func, node.args[0] if node.args else None
        symbols: list[Symbol | None] = []
        for called in self._of(function, context, depth):
            dotted = called.dotted if called else ""
            self.computes |= dotted == "builtins.globals"
            if called and called.kind == Kind.GETTER and argument:
                key = self._text(argument, context)
                self.computes |= key is None
                symbols.append(_present(self.server(key)) if key else None)
            elif dotted in IMPORTERS and argument:
                name = self._text(argument, context)
                if name is None:
                    self.computes |= self.start(argument, context).startswith("mcp.servers.")
                elif dotted != "importlib.import_module" and len(node.args) == 1:
                    name = name.partition(".")[0]
                symbols.append(self.resolve_import(name) if name else None)
            elif dotted == "builtins.getattr" and argument and len(node.args) > 1:
                name = self._text(node.args[1], context)
                owners = self._of(argument, context, depth)
                self.computes |= not name and Kind.MODULES in {one.kind for one in owners if one}
                # A program that asks for a name by `getattr` handles its absence.
                symbols += [
                    _present(self._attribute(one, name)) if name else None for one in owners
                ]
            else:
                symbols.append(None if called is None else self._resolve_awaitable(called))
        return _each(symbols)

    def _resolve_awaitable(self, called: Symbol) -> Symbol | None:
        function = called.function
        own = isinstance(function, ast.AsyncFunctionDef) and id(function) not in self._generators
        helper = called.helper is not None and called.helper.asynchronous
        if called.kind == Kind.TOOL or own or helper or called.dotted in COROUTINES:
            return replace(called, kind=Kind.COROUTINE)
        return Symbol(kind=Kind.FUTURE, name=called.name) if called.dotted in FUTURES else None

    def _item(self, node: ast.Subscript, context: Context, depth: int) -> Found:
        key, value = self._text(node.slice, context), node.value
        if key is None:
            kinds = {base.kind for base in self._of(value, context, depth) if base}
            self.computes |= not kinds.isdisjoint((Kind.PACKAGE, Kind.SERVERS))
            return UNKNOWN
        # `os.__dict__["system"]`, `vars(os)["system"]`
        holder = None
        if isinstance(value, ast.Attribute) and value.attr == "__dict__":
            holder = value.value
        elif isinstance(value, ast.Call) and len(value.args) == 1:
            functions = self._of(value.func, context, depth)
            if any(one is not None and one.dotted == "builtins.vars" for one in functions):
                holder = value.args[0]
        if holder is not None:
            return _each(self._attribute(one, key) for one in self._of(holder, context, depth))
        return _each(self._of_base(base, key) for base in self._of(value, context, depth))

    def _of_base(self, base: Symbol | None, key: str) -> Symbol | None:
        if base is None:
            return None
        if base.dotted == "sys.modules":
            return self.resolve_import(key)
        if base.kind in _HOLDERS:
            return self.server(key)
        if base.kind == Kind.SERVER and base.server is not None:
            entry = base.server.find_tool(key)
            return self._of_server(base.server, key if entry is None else entry.alias)
        return None

    def _text(self, node: ast.expr, context: Context) -> str | None:
        self._left -= 1
        if self._left < 0:
            return None
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Constant(value=bytes() as data):
                return data.decode("utf-8", "replace")
            case ast.Name():
                bound = self._survey.bound(node.id, context)
                value, at = bound[0] if len(bound) == 1 else (None, context)
                return self._text(value, at) if isinstance(value, ast.expr) else None
            case ast.BinOp(op=ast.Add()):
                return self._join_texts((node.left, node.right), "", context)
            case ast.BinOp(op=ast.Div()):
                # `/` joins paths.
                return self._join_texts((node.left, node.right), "/", context)
            case ast.JoinedStr():
                return self._join_texts(node.values, "", context)
            case ast.FormattedValue(conversion=-1, format_spec=None):
                return self._text(node.value, context)
            case ast.Call() if node.args and not node.keywords:
                return self._text_of_call(node, context)
        return None

    def _text_of_call(self, node: ast.Call, context: Context) -> str | None:
        function, given = node.func, node.args[0]
        if isinstance(function, ast.Attribute) and function.attr == "join":
            separator = function.value
            if isinstance(separator, ast.Constant) and isinstance(separator.value, str):
                items = given.elts if isinstance(given, ast.List | ast.Tuple) else None
                return None if items is None else self._join_texts(items, separator.value, context)
        dotted = [one.dotted for one in self._of(function, context, 3) if one is not None]
        if not _JOINS.isdisjoint(dotted):
            return self._join_texts(node.args, "/", context)
        return None if _SAME_TEXT.isdisjoint(dotted) else self._text(given, context)

    def _join_texts(
        self, nodes: Sequence[ast.expr], separator: str, context: Context
    ) -> str | None:
        pieces, room = list[str](), 4096
        for node in nodes:
            piece = self._text(node, context)
            room -= len(separator) + len(piece or "")
            if piece is None or room < 0:
                return None
            pieces.append(piece)
        return separator.join(pieces)


def _each(symbols: Iterable[Symbol | None]) -> Found:
    return tuple(dict.fromkeys(symbols))


def _server(server: ServerEntry) -> Symbol:
    return Symbol(kind=Kind.SERVER, name=f"mcp_{server.alias}", server=server)


def _no_server(name: str) -> Symbol:
    return Symbol(kind=Kind.NO_SERVER, name=repr(valid_text(clip(name, 80))))


def _present(symbol: Symbol | None) -> Symbol | None:
    return None if symbol and symbol.kind in _ABSENT else symbol


def _helper(helper: Helper, label: str) -> Symbol:
    return Symbol(kind=Kind.HELPER, name=label, helper=helper)
