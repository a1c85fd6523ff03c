"""What the names in a program mean, as far as reading can tell. Pure.

Owns scopes, imports, aliases and constant texts: `o.system` is `os.system` after `import os as o`,
and `eval` means nothing in particular once the program has defined its own. Gives no verdicts.

The tree is walked without recursion, each node once. A program decides how deep and how long
everything in it is, so finding a meaning has a bound; past it an expression means nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

Node = ast.AST

IMPORTERS = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
"""Functions that import what they are given."""

MAX_STEPS = 200
"""Nodes looked at for one meaning or one text; a path put together by hand has ten."""

MAX_CALLS = 3
"""Calls within calls that are followed, as in `getattr(import_module("os"), "system")`."""

MAX_MEANINGS = 4
"""Things that one name may stand for, as after `try: import a as x` and `except: import b as x`."""

MAX_SCOPES = 64
"""Scopes looked through for a name. Python allows a hundred blocks, and lambdas without end."""

MAX_TEXT_CHARS = 4096
"""Longer texts name neither a module, nor an attribute, nor a file."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SAYING = (
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.Subscript,
    ast.Import,
    ast.ImportFrom,
    ast.MatchClass,
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_JOINS = frozenset({"os.path.join", "posixpath.join", "pathlib.Path"})
_SAME_TEXT = frozenset({"builtins.str", "os.fspath", "os.path.expanduser", "os.path.realpath"})


@dataclass(eq=False)
class Scope:
    """One namespace of the program.

    Attributes:
        kind: "module", "function", "class" or "comprehension".
        bound: How often each name is given something here.
        known: What names stand for, dotted.
        texts: Texts that names are given.
        outside: Names that are another scope's, by `global` and `nonlocal`.
        stars: Modules whose names were all imported.
    """

    kind: str
    parent: Scope | None = None
    bound: dict[str, int] = field(default_factory=dict)
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    outside: dict[str, Scope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    owners: dict[str, Scope | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root: Scope = self if self.parent is None else self.parent.root

    def bind(self, name: str, meaning: str = "") -> None:
        """Note that `name` is given something, and what."""
        home = self.outside.get(name, self)
        home.bound[name] = home.bound.get(name, 0) + 1
        if meaning:
            self.mean(name, (meaning,))

    def mean(self, name: str, meanings: Sequence[str]) -> None:
        """Note what else a bound name may stand for."""
        known = self.outside.get(name, self).known
        known[name] = tuple(dict.fromkeys((*known.get(name, ()), *meanings)))[:MAX_MEANINGS]

    def owner(self, name: str) -> Scope | None:
        """Return the scope in which `name` is found; None if no scope binds it."""
        if name not in self.owners:
            self.owners[name] = self._owner(name)
        return self.owners[name]

    def _owner(self, name: str) -> Scope | None:
        scope: Scope | None = self
        for _ in range(MAX_SCOPES):
            if scope is None:
                return None
            # The names of a class's body are not seen from the functions in it.
            if name in scope.bound and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.outside.get(name, scope.parent)
        return self.root if name in self.root.bound else None

    def meanings(self, name: str) -> tuple[str, ...]:
        """Return what `name` stands for: what it was given, else a builtin."""
        owner = self.owner(name)
        if owner is not None:
            return owner.known.get(name, ())
        return (f"builtins.{name}", *(f"{star}.{name}" for star in self.root.stars))

    def text(self, name: str) -> str | None:
        """Return the text that `name` is, if it is given that and nothing else."""
        owner = self.owner(name)
        if owner is None or owner.bound[name] != 1:
            return None
        return owner.texts.get(name)

    def beyond_comprehensions(self) -> Scope:
        """Return the scope that `:=` binds in."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope

    def enclosing_function(self) -> Scope:
        """Return the scope that `nonlocal` refers to."""
        scope = self.parent
        while scope is not None and scope.kind != "function":
            scope = scope.parent
        return scope or self.root


class Reader:
    """Reads one tree: first what its names are bound to, then what its expressions mean."""

    def __init__(self) -> None:
        self._given: list[tuple[Scope, list[str], ast.expr]] = []
        self._left = 0

    def read(self, tree: ast.Module) -> Sequence[tuple[Node, Scope]]:
        """Return every node that can say something with its scope, in the order of the text."""
        nodes: list[tuple[Node, Scope]] = []
        stack: list[tuple[Node, Scope]] = [(tree, Scope(kind="module"))]
        while stack:
            node, scope = stack.pop()
            if isinstance(node, _SAYING):
                nodes.append((node, scope))
            children = self._enter(node, scope)
            children.reverse()
            stack.extend(children)
        for scope, names, value in self._given:
            # Once for all names: `a = b = c = ...` may go on.
            text = self.text(value, scope)
            meanings = self.meanings(value, scope)
            for name in names:
                if text is not None:
                    scope.outside.get(name, scope).texts[name] = text
                if meanings:
                    scope.mean(name, meanings)
        return nodes

    def _enter(self, node: Node, scope: Scope) -> list[tuple[Node, Scope]]:
        """Bind what `node` binds; return its children, each with its scope."""
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            return _enter_function(node, scope)
        if isinstance(node, ast.ClassDef):
            scope.bind(node.name)
            own = Scope(kind="class", parent=scope)
            outer = [*node.decorator_list, *node.bases, *(item.value for item in node.keywords)]
            inner = [*getattr(node, "type_params", ()), *node.body]
            return [*((item, scope) for item in outer), *((item, own) for item in inner)]
        if isinstance(node, _COMPREHENSIONS):
            scope = Scope(kind="comprehension", parent=scope)
        elif isinstance(node, ast.NamedExpr):
            home = scope.beyond_comprehensions()
            home.bind(node.target.id)
            self._given.append((home, [node.target.id], node.value))
            return [(node.value, scope)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node, scope)
        else:
            _bind(node, scope)
        return [(child, scope) for child in ast.iter_child_nodes(node)]

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if names:
            self._given.append((scope, names, node.value))
        if not isinstance(node.value, ast.Tuple):
            return
        for target in targets[:1]:
            if isinstance(target, ast.Tuple) and len(target.elts) == len(node.value.elts):
                for name, value in zip(target.elts, node.value.elts, strict=True):
                    if isinstance(name, ast.Name):
                        self._given.append((scope, [name.id], value))

    # --- meanings --------------------------------------------------------------------------------

    def meanings(self, node: ast.expr, scope: Scope) -> tuple[str, ...]:
        """Return what an expression may stand for, dotted ("os.system"); empty if unknown."""
        self._left = MAX_STEPS
        return self._meanings(node, scope, MAX_CALLS)

    def text(self, node: ast.expr, scope: Scope) -> str | None:
        """Return the text that an expression is, or the path; None if only running it can tell."""
        self._left = MAX_STEPS
        return self._text(node, scope, MAX_CALLS)

    def start(self, node: ast.expr, scope: Scope) -> str:
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
        return self.text(node, scope) or ""

    def _meanings(self, node: ast.expr, scope: Scope, calls: int) -> tuple[str, ...]:
        tail: list[str] = []
        while isinstance(node, ast.Attribute) and self._left > 0:
            self._left -= 1
            tail.append(node.attr)
            node = node.value
        bases: tuple[str, ...] = ()
        if self._left > 0:
            self._left -= 1
            if isinstance(node, ast.Name):
                bases = scope.meanings(node.id)
            elif isinstance(node, ast.Call) and calls > 0:
                bases = self._called(node, scope, calls - 1)
            elif isinstance(node, ast.Subscript) and calls > 0:
                bases = self._looked_up(node, scope, calls - 1)
        if not tail or not bases:
            return bases
        suffix = ".".join(reversed(tail))
        return tuple(f"{base}.{suffix}" for base in bases)

    def _called(self, node: ast.Call, scope: Scope, calls: int) -> tuple[str, ...]:
        """Return what calls of functions that find modules and attributes stand for."""
        found: list[str] = []
        for function in self._meanings(node.func, scope, calls):
            if function in IMPORTERS and node.args:
                name = self._text(node.args[0], scope, calls)
                if name is not None:
                    whole = function == "importlib.import_module" or len(node.args) > 1
                    found.append(name if whole else name.partition(".")[0])
            elif function == "builtins.getattr" and len(node.args) > 1:
                name = self._text(node.args[1], scope, calls)
                owners = self._meanings(node.args[0], scope, calls) if name else ()
                found.extend(f"{owner}.{name}" for owner in owners)
        return tuple(found[:MAX_MEANINGS])

    def _looked_up(self, node: ast.Subscript, scope: Scope, calls: int) -> tuple[str, ...]:
        """Return what `sys.modules["os"]`, `os.__dict__["system"]` and the like stand for."""
        value = node.value
        name = self._text(node.slice, scope, calls)
        if name is None:
            return ()
        if isinstance(value, ast.Attribute) and value.attr == "__dict__":
            owners = self._meanings(value.value, scope, calls)
        elif isinstance(value, ast.Call) and len(value.args) == 1:
            called = "builtins.vars" in self._meanings(value.func, scope, calls)
            owners = self._meanings(value.args[0], scope, calls) if called else ()
        else:
            return (name,) if "sys.modules" in self._meanings(value, scope, calls) else ()
        return tuple(f"{owner}.{name}" for owner in owners)

    def _text(self, node: ast.expr, scope: Scope, calls: int) -> str | None:
        pieces: list[str] = []
        stack: list[ast.expr | str] = [node]
        size = 0
        while stack and self._left > 0 and size <= MAX_TEXT_CHARS:
            self._left -= 1
            item = stack.pop()
            parts = (item,) if isinstance(item, str) else self._parts(item, scope, calls)
            if parts is None:
                return None
            if len(parts) == 1 and isinstance(parts[0], str):
                pieces.append(parts[0])
                size += len(parts[0])
            else:
                stack.extend(reversed(parts))
        return None if stack or size > MAX_TEXT_CHARS else "".join(pieces)

    def _parts(self, node: ast.expr, scope: Scope, calls: int) -> Sequence[ast.expr | str] | None:
        """Return what a text is put together from; None if it cannot be told."""
        match node:
            case ast.Constant(value=str() as text):
                return (text,)
            case ast.Constant(value=bytes() as data):
                return (data.decode("utf-8", "replace"),)
            case ast.Name():
                known = scope.text(node.id)
                return None if known is None else (known,)
            case ast.BinOp(op=ast.Add()):
                return (node.left, node.right)
            case ast.BinOp(op=ast.Div()):
                # Dividing texts is what paths do.
                return (node.left, "/", node.right)
            case ast.JoinedStr():
                return node.values[:MAX_STEPS]
            case ast.FormattedValue(conversion=-1, format_spec=None):
                return (node.value,)
            case ast.Call() if calls > 0 and node.args and not node.keywords:
                return self._call_parts(node, scope, calls - 1)
        return None

    def _call_parts(
        self, node: ast.Call, scope: Scope, calls: int
    ) -> Sequence[ast.expr | str] | None:
        function, arguments = node.func, node.args
        if isinstance(function, ast.Attribute) and function.attr == "join":
            separator, given = function.value, arguments[0]
            if isinstance(separator, ast.Constant) and isinstance(separator.value, str):
                items = given.elts if isinstance(given, ast.List | ast.Tuple) else None
                return None if items is None else _between(items[:MAX_STEPS], separator.value)
        meanings = self._meanings(function, scope, calls)
        if not _JOINS.isdisjoint(meanings):
            return _between(arguments[:MAX_STEPS], "/")
        return None if _SAME_TEXT.isdisjoint(meanings) else arguments[:1]


def _between(items: Sequence[ast.expr], separator: str) -> list[ast.expr | str]:
    parts: list[ast.expr | str] = []
    for item in items:
        parts += [separator, item] if parts else [item]
    return parts or [""]


def _enter_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope
) -> list[tuple[Node, Scope]]:
    given = node.args
    own = Scope(kind="function", parent=scope)
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    parameters += [item for item in (given.vararg, given.kwarg) if item is not None]
    # Defaults and annotations are evaluated where the function is defined.
    outer = [*given.defaults, *(item for item in given.kw_defaults if item is not None)]
    for parameter in parameters:
        own.bind(parameter.arg)
        if parameter.annotation is not None:
            outer.append(parameter.annotation)
    if isinstance(node, ast.Lambda):
        return [*((item, scope) for item in outer), (node.body, own)]
    scope.bind(node.name)
    if node.returns is not None:
        outer.append(node.returns)
    inner = [*getattr(node, "type_params", ()), *node.body]
    return [
        *((item, scope) for item in (*node.decorator_list, *outer)),
        *((item, own) for item in inner),
    ]


def _bind(node: Node, scope: Scope) -> None:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            scope.bind(node.id)
    elif isinstance(node, ast.Import):
        for item in node.names:
            top = item.name.partition(".")[0]
            scope.bind(item.asname or top, item.name if item.asname else top)
    elif isinstance(node, ast.ImportFrom):
        _bind_from(node, scope)
    elif isinstance(node, ast.Global):
        scope.outside.update(dict.fromkeys(node.names, scope.root))
    elif isinstance(node, ast.Nonlocal):
        scope.outside.update(dict.fromkeys(node.names, scope.enclosing_function()))
    elif isinstance(node, ast.MatchMapping):
        if node.rest:
            scope.bind(node.rest)
    elif not isinstance(node, ast.alias):
        # Exception handlers, captures in patterns, and parameters of types.
        name = getattr(node, "name", None)
        if isinstance(name, str):
            scope.bind(name)


def _bind_from(node: ast.ImportFrom, scope: Scope) -> None:
    module = "" if node.level else node.module or ""
    for item in node.names:
        if item.name != "*":
            scope.bind(item.asname or item.name, f"{module}.{item.name}" if module else "")
        elif module and len(scope.root.stars) < MAX_MEANINGS:
            scope.root.stars.append(module)
