"""One pass over a program's tree: what binds which name, and where each expression stands.

Owns what the places say of spots in the text: which exceptions are caught around one, whether it is
reached in every run, in which function it is. Decides nothing about mistakes.

The walk is iterative and visits each node once; a program decides how deep it is nested.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from bridge.catalog.checking.handlers import (
    EVERYTHING,
    leaves,
    may_leave,
    swallowed,
    swallowed_in_with,
    truth,
)
from bridge.catalog.checking.places import Bound, Place, Scope

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SKIPPED_FIELDS = frozenset({"annotation", "returns", "type_comment", "ctx", "op", "ops", "kind"})
_BINDING = ("MatchAs", "MatchStar", "MatchMapping", "TypeVar", "ParamSpec", "TypeVarTuple")

_WANTED = frozenset(
    {
        ast.Attribute, ast.Await, ast.BinOp, ast.Call, ast.Compare, ast.Dict, ast.Expr, ast.For,
        ast.AsyncFor, ast.AsyncWith, ast.With, ast.FormattedValue, ast.GeneratorExp, ast.ListComp,
        ast.SetComp, ast.DictComp, ast.If, ast.IfExp, ast.Import, ast.ImportFrom, ast.Assign,
        ast.Name, ast.Return, ast.Starred, ast.Subscript, ast.UnaryOp, ast.While, ast.Yield,
        ast.YieldFrom,
    }
)  # fmt: skip
"""Kinds of nodes that some check looks at."""

_TRICKS = frozenset(
    """
    __builtins__ __import__ compile delattr eval exec globals locals setattr vars
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Functions with which a program may give names something that its text does not show."""

_TRICK_ATTRIBUTES = frozenset(
    """
    __class__ __dict__ __globals__ _getframe f_globals f_locals modules monkeypatch patch
    """.split()  # noqa: SIM905 - as words they can be read
)
_TRICK_MODULES = frozenset({"builtins", "code", "gc", "importlib", "runpy", "unittest"})


Found = list[tuple[ast.AST, Place]]


class Survey:
    """What one tree holds.

    Attributes:
        tree: What was read.
        nodes: Those that are reached, by kind.
        names: Every name that the program binds anywhere.
        words: Short texts in the program, which may name attributes.
        caught: All that is caught anywhere.
        tricky: Whether names may get values that the text does not show.
        star: Whether all names of some module are imported.
        stored: Attributes that are assigned to.
        shared: Names that some function declares another scope's.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes: defaultdict[type[ast.AST], Found] = defaultdict(list)
        self.root = Scope(kind="module")
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.caught: frozenset[str] = frozenset()
        self.tricky = False
        self.star = False
        self.stored: set[str] = set()
        self.shared: set[str] = set()
        self._stack: list[tuple[ast.AST, Place]] = []
        self._parts: dict[type[ast.AST], tuple[tuple[str, ...], bool]] = {}
        self._handlers = {
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.Lambda: self._function,
            ast.ClassDef: self._class,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.Try: self._try,
            getattr(ast, "TryStar", ast.Try): self._try,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.If: self._if,
            ast.While: self._while,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.Match: self._match,
            ast.IfExp: self._either,
            ast.BoolOp: self._either,
            ast.Assign: self._assign,
            ast.AnnAssign: self._assign,
            ast.NamedExpr: self._walrus,
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Global: self._global,
            ast.Nonlocal: self._global,
            ast.ExceptHandler: self._handler,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Constant: self._constant,
            ast.Call: self._call,
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield,
        }
        self._walk(tree)

    def each(self, *kinds: type[ast.AST]) -> Iterable[tuple[ast.AST, Place]]:
        """Return the reached nodes of these kinds."""
        return chain.from_iterable(self.nodes.get(kind, ()) for kind in kinds)

    def owner(self, name: str, place: Place) -> Scope | None:
        """Return the scope that gives `name` its value at a place; None if none does."""
        scope: Scope | None = place.scope
        first = True
        while scope is not None:
            # A class's names are not seen from its methods.
            if name in scope.bound and (first or scope.kind != "class"):
                return scope
            first = first and scope.kind == "comprehension"
            scope = scope.parent
        return None

    # --- the walk --------------------------------------------------------------------------------

    def _walk(self, tree: ast.Module) -> None:
        place = Place(scope=self.root)
        self._block(tree.body, place, last=True)
        stack, handlers, nodes = self._stack, self._handlers, self.nodes
        while stack:
            item = stack.pop()
            node, place = item
            kind = type(node)
            if kind in _WANTED and not place.dead:
                nodes[kind].append(item)
            handler = handlers.get(kind)
            if handler is not None:
                handler(node, place)
            else:
                self._children(node, place)

    def _children(self, node: ast.AST, place: Place) -> None:
        stack = self._stack
        kind = type(node)
        parts = self._parts.get(kind)
        if parts is None:
            fields = tuple(name for name in kind._fields if name not in _SKIPPED_FIELDS)
            parts = self._parts[kind] = fields, kind.__name__ in _BINDING
        for name in parts[0]:
            value = getattr(node, name, None)
            if type(value) is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        stack.append((item, place))
            elif isinstance(value, ast.AST):
                stack.append((value, place))
        if parts[1]:
            self._bind_pattern(node, place)

    def _bind_pattern(self, node: ast.AST, place: Place) -> None:
        bound = node.name if isinstance(node, ast.MatchAs | ast.MatchStar) else None
        if isinstance(node, ast.MatchMapping):
            bound = node.rest
        elif bound is None and not isinstance(node, ast.MatchAs | ast.MatchStar):
            bound = getattr(node, "name", None)
        if bound:
            self._bind(bound, None, place)

    def _block(self, body: Sequence[ast.stmt], place: Place, *, last: bool = False) -> None:
        for statement in body:
            if last and statement is body[-1]:
                place = Place(
                    scope=place.scope, conditional=place.conditional, dead=place.dead, last=True
                )
            self._stack.append((statement, place))
            if place.dead:
                continue
            if leaves(statement):
                place = place.but(dead=True)
            elif isinstance(statement, ast.If) and not place.conditional and may_leave(statement):
                place = place.but(conditional=True)

    def _bind(self, name: str, value: Bound, place: Place) -> None:
        place.scope.bound.setdefault(name, []).append((value, place))
        self.names.add(name)

    def _bind_targets(self, target: ast.expr, value: ast.expr | None, place: Place) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value, place)
        else:
            # Parts of a tuple, items and attributes: whatever they get is unclear.
            self._stack.append((target, place))

    def _name(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Name)
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id, None, place)
        elif node.id in _TRICKS:
            self.tricky = True

    def _attribute(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Attribute)
        if not isinstance(node.ctx, ast.Load):
            self.stored.add(node.attr)
        elif node.attr in _TRICK_ATTRIBUTES:
            self.tricky = True
        self._stack.append((node.value, place))

    def _constant(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Constant)
        if isinstance(node.value, str) and len(node.value) <= 64:
            self.words.add(node.value)

    def _call(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Call)
        for keyword in node.keywords:
            if keyword.arg == "return_exceptions":
                self.caught |= EVERYTHING
            self._stack.append((keyword.value, place))
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "exception", "add_done_callback", "wait",
        ):  # fmt: skip
            # What a task raised is looked at rather than raised again.
            self.caught |= EVERYTHING
        for argument in node.args:
            self._stack.append((argument, place))
        self._stack.append((node.func, place))

    def _yield(self, node: ast.AST, place: Place) -> None:
        place.scope.function().generator = True
        self._children(node, place)

    def _assign(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            # An annotation alone binds nothing that could be used.
            self.names.update(t.id for t in targets if isinstance(t, ast.Name))
            return
        for target in targets:
            self._bind_targets(target, node.value, place)
        self._stack.append((node.value, place))

    def _walrus(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.NamedExpr)
        self._bind(node.target.id, node.value, place.but(scope=place.scope.function()))
        self._stack.append((node.value, place))

    def _import(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Import)
        for item in node.names:
            top = item.name.partition(".")[0]
            self.tricky |= top in _TRICK_MODULES
            name, meaning = (item.asname, item.name) if item.asname else (top, top)
            self._bind(name, f"import:{meaning}", place)

    def _import_from(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.ImportFrom)
        module = "" if node.level else node.module or ""
        self.tricky |= module.partition(".")[0] in _TRICK_MODULES
        for item in node.names:
            if item.name == "*":
                self.star = True
            else:
                meaning = f"import:{module}.{item.name}" if module else None
                self._bind(item.asname or item.name, meaning, place)

    def _global(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Global | ast.Nonlocal)
        self.names.update(node.names)
        # What another function gives a name, and when, does not show.
        self.shared.update(node.names)

    def _handler(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.ExceptHandler)
        if node.name:
            self._bind(node.name, None, place)
        if node.type is not None:
            self._stack.append((node.type, place))
        self._block(node.body, place)

    # --- what opens a scope ----------------------------------------------------------------------

    def _function(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        own = Scope(kind="function", parent=place.scope, node=node)
        inner = Place(scope=own, dead=place.dead)
        given = node.args
        for item in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if item is not None:
                self._bind(item.arg, None, inner)
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                self._stack.append((default, place))
        if isinstance(node, ast.Lambda):
            self._stack.append((node.body, inner))
            return
        self._bind(node.name, None if node.decorator_list else node, place)
        self._stack.extend((decorator, place) for decorator in node.decorator_list)
        for parameter in getattr(node, "type_params", ()):
            self._stack.append((parameter, inner))
        self._block(node.body, inner)

    def _class(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.ClassDef)
        self._bind(node.name, None, place)
        for item in (*node.bases, *node.decorator_list, *(k.value for k in node.keywords)):
            self._stack.append((item, place))
        inner = place.but(scope=Scope(kind="class", parent=place.scope))
        for parameter in getattr(node, "type_params", ()):
            self._stack.append((parameter, inner))
        self._block(node.body, inner)

    def _comprehension(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, _COMPREHENSIONS)
        own = Scope("comprehension", place.scope, generator=isinstance(node, ast.GeneratorExp))
        inner = place.but(scope=own, conditional=True)
        for index, generator in enumerate(node.generators):
            self._stack.append((generator.iter, inner if index else place))
            self._stack.append((generator.target, inner))
            self._stack.extend((test, inner) for test in generator.ifs)
        if isinstance(node, ast.DictComp):
            self._stack += [(node.key, inner), (node.value, inner)]
        else:
            self._stack.append((node.elt, inner))

    # --- what decides whether something is reached, and what is caught ---------------------------

    def _try(self, node: ast.AST, place: Place) -> None:
        handlers: list[ast.ExceptHandler] = getattr(node, "handlers", [])
        caught = swallowed(handlers, getattr(node, "finalbody", ()))
        self.caught |= caught
        within = place.but(caught=caught) if caught else place
        self._block(getattr(node, "body", ()), within)
        self._block(getattr(node, "orelse", ()), within.but(conditional=True))
        # Only if something was raised, which is what programs test for.
        self._stack.extend((handler, place.but(conditional=True)) for handler in handlers)
        self._block(getattr(node, "finalbody", ()), place)

    def _with(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.With | ast.AsyncWith)
        caught = swallowed_in_with(node)
        self.caught |= caught
        for item in node.items:
            self._stack.append((item.context_expr, place))
            if item.optional_vars is not None:
                self._stack.append((item.optional_vars, place))
        self._block(node.body, place.but(caught=caught) if caught else place)

    def _if(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.If)
        known = truth(node.test)
        self._stack.append((node.test, place))
        for body, never in ((node.body, known is False), (node.orelse, known is True)):
            within = place.but(dead=never, conditional=known is None)
            self._block(body, within)

    def _while(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.While)
        self._stack.append((node.test, place))
        known = truth(node.test)
        self._block(node.body, place.but(dead=known is False, conditional=known is None))
        self._block(node.orelse, place.but(conditional=True))

    def _for(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.For | ast.AsyncFor)
        self._stack += [(node.iter, place), (node.target, place)]
        self._block(node.body, place.but(conditional=True))
        self._block(node.orelse, place.but(conditional=True))

    def _match(self, node: ast.AST, place: Place) -> None:
        assert isinstance(node, ast.Match)
        self._stack.append((node.subject, place))
        within = place.but(conditional=True)
        for case in node.cases:
            self._stack.append((case.pattern, within))
            if case.guard is not None:
                self._stack.append((case.guard, within))
            self._block(case.body, within)

    def _either(self, node: ast.AST, place: Place) -> None:
        if isinstance(node, ast.IfExp):
            known = truth(node.test)
            self._stack.append((node.test, place))
            for value, never in ((node.body, known is False), (node.orelse, known is True)):
                self._stack.append((value, place.but(dead=never, conditional=known is None)))
        elif isinstance(node, ast.BoolOp):
            self._stack.append((node.values[0], place))
            within = place.but(conditional=True)
            self._stack.extend((value, within) for value in node.values[1:])
