"""Walks a program's tree once and records its scopes, its bindings and the context of each node.

All rules use this analysis. It tells which mistakes are certain: those that end the program, or
lack their effect, in every possible run. Any code may call a function, so an exception that is
caught anywhere counts as caught inside it. The walk is iterative: programs may nest deeply.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bridge.model import Severity

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Bound = ast.expr | Function | str | None
"""The value of a name: an expression, a function or a dotted module; None if unknown."""

_OTHER_BUILTINS = frozenset(
    """
    BaseExceptionGroup EncodingWarning ExceptionGroup ImportCycleError PythonFinalizationError
    basestring frozendict long raw_input sentinel unichr
    """.split()  # noqa: SIM905 - as words they can be read
)
BUILTINS = frozenset(dir(builtins)) | _OTHER_BUILTINS | {"display"}
"""The builtins of this interpreter, of newer ones in the sandbox, and of the guest. Programs that
support Python 2 name its builtins."""

EVERYTHING = frozenset({"*"})

NOTHING: frozenset[str] = frozenset()

_SKIPPED_FIELDS = frozenset({"type_comment", "ctx", "op", "ops", "kind"})
_BINDING = frozenset({"name", "rest"})

_TRICKS = frozenset(
    """
    __builtins__ __import__ compile delattr eval exec globals locals setattr vars
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Functions that may bind names dynamically."""

_TRICK_ATTRIBUTES = frozenset(
    """
    __class__ __dict__ __globals__ _getframe f_globals f_locals modules monkeypatch patch
    """.split()  # noqa: SIM905 - as words they can be read
)
_TRICK_MODULES = frozenset({"builtins", "code", "gc", "importlib", "runpy", "unittest"})


@dataclass(eq=False)
class Scope:
    """A namespace in a program's source, with the names that the source binds in it."""

    kind: str  # "module", "function", "class" or "comprehension".
    parent: Scope | None = None
    node: Function | None = None
    bound: dict[str, list[tuple[Bound, Context]]] = field(default_factory=dict)
    generator: bool = False  # Whether the function yields, or a comprehension is a generator.
    # Names declared `global` or `nonlocal`, with the scope that they belong to.
    outside: dict[str, Scope] = field(default_factory=dict)

    def chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def function(self) -> Scope:
        return next(scope for scope in self.chain() if scope.kind != "comprehension")

    def holder(self) -> Scope:
        return next(scope for scope in self.chain() if scope.kind in ("function", "module"))

    @property
    def asynchronous(self) -> bool:
        scope = self.function()
        return scope.kind == "module" or isinstance(scope.node, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Context:
    """The position of a syntax node: its scope, loops and exception handlers."""

    scope: Scope
    caught: frozenset[str] = NOTHING  # Exceptions that do not end the program when raised here.
    dead: bool = False  # Whether the node is never reached, or is an annotation.
    last: bool = False  # Whether it belongs to the program's last statement.
    loops: tuple[int, ...] = ()  # First lines of the enclosing loops, outermost first.

    def inside(
        self,
        *,
        scope: Scope | None = None,
        caught: frozenset[str] = NOTHING,
        dead: bool = False,
        loop: ast.stmt | ast.expr | None = None,
    ) -> Context:
        return Context(
            scope=scope or self.scope,
            caught=self.caught | caught if caught else self.caught,
            dead=self.dead or dead,
            loops=self.loops if loop is None else (*self.loops, loop.lineno),
        )


class Survey:
    """The nodes, scopes and bindings of one program."""

    def __init__(self, tree: ast.Module) -> None:
        # More names that the run gives the program, with their meanings; see `NameTable.resolve`.
        self.given: Mapping[str, str] = {}
        self.tree = tree
        self.root = Scope(kind="module")
        self.functions: list[Scope] = []
        self.names: set[str] = set()  # Every name that the program binds anywhere.
        self.words: set[str] = set()  # Short texts in the program, which may name attributes.
        self.caught: frozenset[str] = NOTHING  # Exceptions that are caught anywhere.
        self.tricky = False  # Whether names may be bound dynamically.
        self.stars: list[str] = []  # Modules imported with `*`.
        self.stored: set[str] = set()  # Attributes that are assigned to.
        self.shared: set[str] = set()  # Names that some function declares `global` or `nonlocal`.
        self._nodes: defaultdict[type, list[tuple[Any, Context]]] = defaultdict(list)
        self._stack: list[tuple[ast.AST, Context]] = []
        self._parts: dict[type, tuple[str, ...]] = {}
        self._walk(tree)
        for scope in self.functions:
            for name, home in scope.outside.items():
                if name in scope.bound:
                    home.bound.setdefault(name, []).extend(scope.bound.pop(name))

    def each(self, *kinds: type[ast.AST]) -> Iterator[tuple[Any, Context]]:
        """Yield the nodes of these kinds that may be reached."""
        return (found for found in self.every(*kinds) if not found[1].dead)

    def every(self, *kinds: type[ast.AST]) -> Iterator[tuple[Any, Context]]:
        for kind in kinds:
            yield from self._nodes.get(kind, ())

    def owner(self, name: str, context: Context) -> Scope | None:
        """Return the scope that binds `name` as seen from a context; None if none does."""
        scope: Scope | None = context.scope
        first = True
        while scope is not None:
            # A class's names are not visible in its methods.
            if name in scope.bound and (first or scope.kind != "class"):
                return scope
            first = first and scope.kind == "comprehension"
            scope = scope.outside.get(name, scope.parent)
        return None

    def bound(self, name: str, context: Context) -> Sequence[tuple[Bound, Context]]:
        owner = self.owner(name, context)
        return () if owner is None else owner.bound[name]

    @cached_property
    def free(self) -> list[tuple[ast.Name, Context]]:
        """The uses of names that are no builtins and that the program does not seem to define."""
        # It may define names as attributes, or by their texts as in `globals()["x"]`.
        known = self.names | self.stored | (self.words if self.tricky else set()) | BUILTINS
        return [use for use in self.every(ast.Name) if use[0].id not in known]

    @cached_property
    def read_names(self) -> frozenset[str]:
        names = self.each(ast.Name)
        return frozenset(node.id for node, _ in names if isinstance(node.ctx, ast.Load))

    def raises(self, context: Context, kind: str, *, later: bool = False) -> Severity:
        """Return the severity of a mistake that raises `kind`; `later` at any other `await`."""
        caught = context.caught
        if later or context.scope.holder() is not self.root:
            caught |= self.caught
        return "note" if catches(caught, kind) else self.happens(context)

    def happens(self, context: Context) -> Severity:
        """Return the severity of a mistake that raises nothing but has not the intended effect."""
        runs = id(context.scope.holder()) in self._called
        return "deny" if runs and not self.tricky else "note"

    @cached_property
    def _called(self) -> set[int]:
        by_name: defaultdict[str, list[Scope]] = defaultdict(list)
        reached = [self.root]
        for scope in self.functions:
            node, parent = scope.node, scope.parent
            if isinstance(node, ast.Lambda) or node is None or parent is None:
                continue
            if parent.kind != "class":
                by_name[node.name].append(scope)
            if node.decorator_list:
                # Its decorator may call it.
                reached.append(scope)
        uses: defaultdict[int, list[Scope]] = defaultdict(list)
        for node, context in self.each(ast.Name):
            if node.id in by_name and isinstance(node.ctx, ast.Load):
                owner = self.owner(node.id, context)
                named = [scope for scope in by_name[node.id] if scope.parent is owner]
                uses[id(context.scope.holder())] += named
        called: set[int] = set()
        while reached:
            scope = reached.pop()
            if id(scope) not in called:
                called.add(id(scope))
                reached += uses[id(scope)]
        return called

    def _walk(self, tree: ast.Module) -> None:
        self._block(tree.body, Context(scope=self.root), last=True)
        stack, nodes = self._stack, self._nodes
        while stack:
            item = stack.pop()
            node, context = item
            kind = type(node)
            nodes[kind].append(item)
            _HANDLERS.get(kind, Survey._push_children)(self, node, context)
        for items in nodes.values():
            # The last node of a block is walked first.
            items.reverse()

    def _push_children(self, node: ast.AST, context: Context) -> None:
        stack, kind = self._stack, type(node)
        if kind not in self._parts:
            skipped = _SKIPPED_FIELDS | (_BINDING if kind is ast.alias else NOTHING)
            self._parts[kind] = tuple(name for name in kind._fields if name not in skipped)
        for name in self._parts[kind]:
            value = getattr(node, name, None)
            if type(value) is list:
                stack.extend([(item, context) for item in value if isinstance(item, ast.AST)])
            elif isinstance(value, ast.AST):
                stack.append((value, context))
            elif name in _BINDING and isinstance(value, str):
                # Captures in patterns, and type parameters.
                self._bind(value, None, context)

    def _block(self, body: Sequence[ast.stmt], context: Context, *, last: bool = False) -> None:
        for statement in body:
            if last and statement is body[-1]:
                context = replace(context, last=True)
            self._stack.append((statement, context))
            if not context.dead and _leaves(statement):
                context = context.inside(dead=True)

    def _bind(self, name: str, value: Bound, context: Context) -> None:
        context.scope.bound.setdefault(name, []).append((value, context))
        self.names.add(name)

    def _bind_targets(self, target: ast.expr, value: ast.expr, context: Context) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value, context)
            self._nodes[ast.Name].append((target, context))
            return
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            starred = any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts))
            if len(target.elts) == len(value.elts) and not starred:
                for part, given in zip(target.elts, value.elts, strict=True):
                    self._bind_targets(part, given, context)
                return
        # Items, attributes and parts of a value: what is assigned to them is unknown.
        self._stack.append((target, context))

    def _name(self, node: ast.Name, context: Context) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id, None, context)
        elif node.id in _TRICKS:
            self.tricky = True

    def _attribute(self, node: ast.Attribute, context: Context) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.stored.add(node.attr)
        elif node.attr in _TRICK_ATTRIBUTES:
            self.tricky = True
        self._stack.append((node.value, context))

    def _constant(self, node: ast.Constant, _: Context) -> None:
        if isinstance(node.value, str) and len(node.value) <= 64:
            self.words.add(node.value)

    def _call(self, node: ast.Call, context: Context) -> None:
        watched = isinstance(node.func, ast.Attribute) and node.func.attr in (
            "exception", "add_done_callback", "wait",
        )  # fmt: skip
        if watched or any(keyword.arg == "return_exceptions" for keyword in node.keywords):
            # A task's exception is inspected rather than raised again.
            self.caught |= EVERYTHING
        self._push_children(node, context)

    def _yield(self, node: ast.AST, context: Context) -> None:
        context.scope.function().generator = True
        self._push_children(node, context)

    def _assign(self, node: ast.Assign | ast.AnnAssign, context: Context) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node, ast.AnnAssign):
            self._stack.append((node.annotation, context.inside(dead=True)))
        if node.value is None:
            # An annotation without a value binds nothing.
            self.names.update(t.id for t in targets if isinstance(t, ast.Name))
            return
        for target in targets:
            self._bind_targets(target, node.value, context)
        self._stack.append((node.value, context))

    def _walrus(self, node: ast.NamedExpr, context: Context) -> None:
        self._bind(node.target.id, node.value, context.inside(scope=context.scope.function()))
        self._stack.append((node.value, context))

    def _import(self, node: ast.Import, context: Context) -> None:
        for item in node.names:
            top = item.name.partition(".")[0]
            self.tricky |= top in _TRICK_MODULES
            name, symbol = (item.asname, item.name) if item.asname else (top, top)
            self._bind(name, symbol, context)

    def _import_from(self, node: ast.ImportFrom, context: Context) -> None:
        module = "" if node.level else node.module or ""
        self.tricky |= module.partition(".")[0] in _TRICK_MODULES
        for item in node.names:
            if item.name == "*":
                self.stars.append(module)
            else:
                symbol = f"{module}.{item.name}" if module else None
                self._bind(item.asname or item.name, symbol, context)

    def _global(self, node: ast.Global | ast.Nonlocal, context: Context) -> None:
        self.names.update(node.names)
        # Another function may bind the name at any time.
        self.shared.update(node.names)
        scope, home = context.scope.function(), self.root
        if isinstance(node, ast.Nonlocal) and scope.parent is not None:
            home = scope.parent.holder()
        scope.outside.update(dict.fromkeys(node.names if home is not scope else (), home))

    def _handler(self, node: ast.ExceptHandler, context: Context) -> None:
        if node.name:
            self._bind(node.name, None, context)
        if node.type is not None:
            self._stack.append((node.type, context))
        self._block(node.body, context)

    def _function(self, node: Function, context: Context) -> None:
        own = Scope(kind="function", parent=context.scope, node=node)
        self.functions.append(own)
        inner = Context(scope=own, dead=context.dead, loops=context.loops)
        given = node.args
        unread = context.inside(dead=True)
        for item in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if item is not None:
                self._bind(item.arg, None, inner)
                if item.annotation is not None:
                    self._stack.append((item.annotation, unread))
        defaults = (*given.defaults, *given.kw_defaults)
        self._stack.extend((default, context) for default in defaults if default is not None)
        if isinstance(node, ast.Lambda):
            self._stack.append((node.body, inner))
            return
        self._bind(node.name, None if node.decorator_list else node, context)
        self._stack.extend((decorator, context) for decorator in node.decorator_list)
        if node.returns is not None:
            self._stack.append((node.returns, unread))
        self._stack.extend((parameter, inner) for parameter in getattr(node, "type_params", ()))
        self._block(node.body, inner)

    def _class(self, node: ast.ClassDef, context: Context) -> None:
        self._bind(node.name, None, context)
        outer = (*node.bases, *node.decorator_list, *(k.value for k in node.keywords))
        self._stack.extend((item, context) for item in outer)
        inner = context.inside(scope=Scope(kind="class", parent=context.scope))
        self._stack.extend((parameter, inner) for parameter in getattr(node, "type_params", ()))
        self._block(node.body, inner)

    def _comprehension(self, node: Any, context: Context) -> None:
        own = Scope("comprehension", context.scope, generator=isinstance(node, ast.GeneratorExp))
        inner = context.inside(scope=own, loop=node)
        for index, generator in enumerate(node.generators):
            self._stack.append((generator.iter, inner if index else context))
            self._stack.append((generator.target, inner))
            self._stack.extend((test, inner) for test in generator.ifs)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._stack.extend((result, inner) for result in results)

    def _try(self, node: Any, context: Context) -> None:
        caught = _find_swallowed(node.handlers, node.finalbody)
        self.caught |= caught
        within = context.inside(caught=caught) if caught else context
        self._block(node.body, within)
        self._block(node.orelse, within)
        self._stack.extend((handler, context) for handler in node.handlers)
        self._block(node.finalbody, context)

    def _with(self, node: ast.With | ast.AsyncWith, context: Context) -> None:
        caught = NOTHING if all(map(_is_plain, node.items)) else EVERYTHING
        self.caught |= caught
        self._stack.extend((item, context) for item in node.items)
        self._block(node.body, context.inside(caught=caught) if caught else context)

    def _if(self, node: ast.If | ast.IfExp | ast.While, context: Context) -> None:
        known = _truth(node.test)
        loop = node if isinstance(node, ast.While) else None
        self._stack.append((node.test, context.inside(loop=loop)))
        for branch, never in ((node.body, known is False), (node.orelse, known is True)):
            within = context.inside(dead=never, loop=loop)
            if isinstance(branch, list):
                self._block(branch, within)
            else:
                self._stack.append((branch, within))

    def _loop(self, node: ast.For | ast.AsyncFor, context: Context) -> None:
        self._stack += [(node.iter, context), (node.target, context)]
        self._block(node.body, context.inside(loop=node))
        self._block(node.orelse, context)


_HANDLERS: Mapping[type[ast.AST], Any] = {
    kind: handler
    for handler, *kinds in (
        (Survey._function, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
        (Survey._class, ast.ClassDef),
        (Survey._comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
        (Survey._try, ast.Try, getattr(ast, "TryStar", ast.Try)),
        (Survey._with, ast.With, ast.AsyncWith),
        (Survey._if, ast.If, ast.IfExp, ast.While),
        (Survey._loop, ast.For, ast.AsyncFor),
        (Survey._assign, ast.Assign, ast.AnnAssign),
        (Survey._walrus, ast.NamedExpr),
        (Survey._import, ast.Import),
        (Survey._import_from, ast.ImportFrom),
        (Survey._global, ast.Global, ast.Nonlocal),
        (Survey._handler, ast.ExceptHandler),
        (Survey._name, ast.Name),
        (Survey._attribute, ast.Attribute),
        (Survey._constant, ast.Constant),
        (Survey._call, ast.Call),
        (Survey._yield, ast.Yield, ast.YieldFrom),
    )
    for kind in kinds
}

_BUILTIN = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
_OWN_PARENTS = {
    "MCPError": ("RuntimeError",),
    "ArgumentsError": ("TypeError", "RuntimeError", "MCPError"),
    "MissingKeyError": ("KeyError",),
    "UnknownNameError": ("KeyError", "AttributeError", "RuntimeError", "MCPError"),
    "JSONDecodeError": ("ValueError",),
    "CancelledError": ("BaseException",),
}

_ENDS = frozenset({"exit", "quit", "_exit", "abort"})
_PLAIN_CONTEXTS = frozenset(
    """
    open Lock Semaphore BoundedSemaphore TaskGroup timeout timeout_at TemporaryDirectory
    NamedTemporaryFile TemporaryFile ZipFile ThreadPoolExecutor closing StringIO BytesIO
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Context managers that suppress no exception."""


def catches(caught: frozenset[str], kind: str) -> bool:
    if not caught:
        return False
    names = {"*", kind, *_OWN_PARENTS.get(kind, ())}
    for name in names & _BUILTIN.keys():
        names |= {ancestor.__name__ for ancestor in _BUILTIN[name].__mro__}
    return not caught.isdisjoint(names)


def _find_swallowed(
    handlers: Sequence[ast.ExceptHandler], last: Sequence[ast.stmt]
) -> frozenset[str]:
    """Return the exceptions that a handler, or the `finally`, does not let propagate."""
    if last and isinstance(last[-1], ast.Return | ast.Break | ast.Continue):
        # The exception is dropped.
        return EVERYTHING
    caught = NOTHING
    for handler in handlers:
        *before, end = handler.body
        plain = all(isinstance(statement, ast.Expr) for statement in before)
        if not (isinstance(end, ast.Raise) and end.exc is None and plain):
            caught |= _exceptions(handler.type)
    return caught


def _is_plain(item: ast.withitem) -> bool:
    manager = item.context_expr
    return last_name(manager.func if isinstance(manager, ast.Call) else manager) in _PLAIN_CONTEXTS


def _exceptions(node: ast.expr | None) -> frozenset[str]:
    if isinstance(node, ast.Tuple):
        return frozenset().union(*map(_exceptions, node.elts))
    name = last_name(node)
    if name in _OWN_PARENTS or (name in _BUILTIN and not name.endswith("ExceptionGroup")):
        return frozenset({name})
    # An unknown class, or an exception group, which wraps any exception of its tasks.
    return EVERYTHING


def last_name(node: ast.expr | None) -> str:
    """Return "c" for `c` and for `a.b.c`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value.func) in _ENDS
    return False


def _truth(test: ast.expr) -> bool | None:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if last_name(test) == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Compare) and last_name(test.left) == "__name__":
        against, operator = test.comparators[0], test.ops[0]
        if isinstance(against, ast.Constant) and isinstance(operator, ast.Eq | ast.NotEq):
            return (against.value == "__main__") is isinstance(operator, ast.Eq)
    return None
