"""Rules on `await`: missing-await, not-awaitable, not-called, await-outside-async, gather-list."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from types import CoroutineType
from typing import Any

from bridge.catalog.program.advice import quoted
from bridge.catalog.program.report import AWAIT, Edit, Report
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import Kind, Symbol, SymbolResolver
from bridge.catalog.program.tables import DATA_BUILTINS, DATA_MEMBERS, SHOWING
from bridge.model import Severity

_SHOWN = "is shown"
_TAKEN = "is used as"


def _compared(node: ast.Compare) -> list[ast.expr]:
    by_value = not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
    return [node.left, *node.comparators] if by_value else []


_USES: tuple[tuple[tuple[type[ast.AST], ...], str, Callable[[Any], list[ast.expr]]], ...] = (
    ((ast.Subscript,), "is indexed", lambda n: [n.value] if isinstance(n.ctx, ast.Load) else []),
    ((ast.For,), "is iterated over", lambda n: [n.iter]),
    (
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
        "is iterated over",
        lambda n: [] if n.generators[0].is_async else [n.generators[0].iter],
    ),
    ((ast.Starred,), "is unpacked", lambda n: [n.value]),
    ((ast.BinOp,), "is computed with", lambda n: [n.left, n.right]),
    ((ast.Compare,), f"{_TAKEN} a value", _compared),
    ((ast.If, ast.While, ast.IfExp), f"{_TAKEN} true", lambda n: [n.test]),
    ((ast.FormattedValue,), _SHOWN, lambda n: [n.value]),
)
"""Kinds of nodes, words for the use, and the expressions that they use as data."""


class AwaitRules:
    """Checks calls that have to be awaited, and `await` itself."""

    def __init__(
        self, survey: Survey, symbols: SymbolResolver, report: Report, *, in_session: bool = False
    ) -> None:
        self._in_session = in_session
        self._survey = survey
        self._symbols = symbols
        self._report = report
        self._under_await = dict(self._chains())
        values = [node.value for node, _ in survey.each(ast.Await)]
        self._awaits = {id(value) for value in values}
        self._awaited_names = {value.id for value in values if isinstance(value, ast.Name)}

    def check(self) -> None:
        each = self._survey.each
        for node, context in each(ast.Expr):
            if not context.last:
                # The guest awaits the program's last expression.
                self._dropped(node, node.value, context)
        for value, context, use in self._uses():
            if isinstance(value, ast.Name | ast.Call):
                self._used(value, context, use)
        rules = ((ast.Assign, self._assigned), (ast.Await, self._await), (ast.Call, self._gather))
        for kind, rule in rules:
            for node, context in each(kind):
                rule(node, context)
        for node, context in each(ast.AsyncFor, ast.AsyncWith):
            if not context.scope.asynchronous:
                what = "async for" if isinstance(node, ast.AsyncFor) else "async with"
                self._outside(node, context, what)
            elif isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call):
                self._used(node.iter, context, "is iterated over", Edit("plain", node))
        for node, context in each(ast.Return):
            if context.scope.function().kind != "function":
                message = (
                    "`return` outside a function; end the program with the value as its last "
                    "expression instead, or `print` it"
                )
                edits = (Edit("value", node),) if context.last else ()
                self._report.add(node, "syntax", "deny", message, edits)

    def _dropped(self, node: ast.stmt, value: ast.expr, context: Context) -> None:
        symbol = self._symbols.of(value, context)
        if symbol is not None and symbol.kind == Kind.COROUTINE:
            # A forgotten `asyncio.sleep(1)` loses no result.
            lost = symbol.tool or symbol.function or symbol.helper
            severity = self._survey.happens(context) if lost else "note"
            problem = "is called without `await`, so nothing happens"
            self._missing(value, severity, symbol, problem, context)
        elif symbol is not None and symbol.kind == Kind.TOOL:
            message = f"{quoted(symbol.name)} is only named; call it: `await {symbol.name}(...)`"
            self._report.add(node, "not-called", "note", message)

    def _assigned(self, node: ast.Assign, context: Context) -> None:
        """Check `x = tool()`: report it if `x` is a tuple of targets or is never read."""
        target = node.targets[0]
        symbol = self._symbols.of(node.value, context)
        if symbol is None or symbol.kind != Kind.COROUTINE or len(node.targets) != 1:
            return
        if isinstance(target, ast.Tuple | ast.List):
            severity = self._survey.raises(context, "TypeError")
            self._missing(node.value, severity, symbol, "is unpacked without `await`", context)
        elif isinstance(target, ast.Name):
            # In a session, a later program may await a global.
            kept = context.scope.kind == "class" or (
                self._in_session and context.scope is self._survey.root
            )
            if not kept and target.id not in self._survey.shared | self._survey.read_names:
                self._dropped(node, node.value, context)

    def _used(self, node: ast.Name | ast.Call, context: Context, use: str, *also: Edit) -> None:
        symbol = self._symbols.of(node, context)
        if symbol is None or symbol.kind not in (Kind.COROUTINE, Kind.FUTURE):
            return
        named = node.id if isinstance(node, ast.Name) else ""
        future = symbol.kind == Kind.FUTURE
        if future and use.startswith(_TAKEN):
            # Tasks are hashable values: comparing them is fine.
            return
        if named and use.startswith(_SHOWN) and (future or named in self._awaited_names):
            # The program shows it, and awaits it elsewhere: that may be intended.
            return
        if use.startswith((_SHOWN, _TAKEN)):
            later = named in self._handed_on or (self._in_session and named)
            severity = "note" if later else self._survey.happens(context)
        else:
            severity = self._survey.raises(context, "TypeError")
        self._missing(node, severity, symbol, f"{use} without `await`", context, *also)

    def _missing(
        self,
        node: ast.expr,
        severity: Severity,
        symbol: Symbol,
        problem: str,
        context: Context,
        *also: Edit,
    ) -> None:
        call = f"{symbol.name}(...)"
        edits = self._await_edits(node, context, also)
        message = f"{quoted(call)} {problem}; write `await {call}`"
        if id(node) in self._under_await:
            above = Edit("plain", self._under_await[id(node)])
            edits = (*edits, above) if edits and isinstance(node, ast.Call) else ()
            message = (
                f"`await` waits for what comes after the dot or the bracket, not for "
                f"{quoted(call)}; put parentheses around it: `(await {call})`"
            )
        elif isinstance(node, ast.Name):
            use = problem.removesuffix(" without `await`")
            message = (
                f"{quoted(node.id)} {use}, but it is {quoted(call)} without its value; write "
                f"`{node.id} = await {call}`"
            )
        elif symbol.kind == Kind.FUTURE:
            message += " before its values are used"
        self._report.add(node, "missing-await", severity, message, edits)

    def _await_edits(
        self, node: ast.expr, context: Context, also: Sequence[Edit] = ()
    ) -> tuple[Edit, ...]:
        """Return the edits that await a call, or the only call that a name stands for."""
        if isinstance(node, ast.Name):
            bound = self._survey.bound(node.id, context)
            value, context = bound[0] if len(bound) == 1 else (None, context)
            if not isinstance(value, ast.Call) or node.id in self._handed_on | self._awaited_names:
                return ()
            node = value
        if not context.scope.asynchronous or _in_generator(context):
            return ()
        return (Edit(AWAIT, node), *also) if isinstance(node, ast.Call) else ()

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        """Names with a use that may await them: passed to `gather`, put into a list, returned."""
        as_data = {id(value) for value, _, _ in self._uses()}
        return frozenset(
            node.id
            for node, _ in self._survey.each(ast.Name)
            if isinstance(node.ctx, ast.Load) and id(node) not in as_data
        )

    def _uses(self) -> Iterator[tuple[ast.expr, Context, str]]:
        for kinds, use, values in _USES:
            for node, context in self._survey.each(*kinds):
                for value in values(node):
                    if isinstance(value, ast.Call) or use != f"{_TAKEN} true":
                        yield value, context, use
        for node, context in self._survey.each(ast.Attribute):
            symbol = self._symbols.of(node.value, context)
            if symbol and symbol.kind == Kind.COROUTINE and not hasattr(CoroutineType, node.attr):
                yield node.value, context, f"is asked for {quoted(node.attr)}"
        for node, context in self._survey.each(ast.Call):
            yield from self._data_arguments(node, context)

    def _data_arguments(
        self, node: ast.Call, context: Context
    ) -> Iterator[tuple[ast.expr, Context, str]]:
        function, use = node.func, ""
        for keyword in node.keywords:
            if keyword.arg is None:
                yield keyword.value, context, "is unpacked"
        if self._symbols.is_builtin(function, SHOWING):
            use = _SHOWN
        elif self._symbols.is_builtin(function, DATA_BUILTINS):
            use = f"is given to {quoted(getattr(function, 'id', ''))}"
        elif isinstance(function, ast.Attribute):
            symbol = self._symbols.of(function, context)
            if symbol is not None and symbol.dotted in DATA_MEMBERS:
                use = f"is given to {quoted(symbol.dotted)}"
            elif function.attr == "join" and isinstance(function.value, ast.Constant):
                use = "is joined"
        if use:
            for argument in node.args:
                yield argument, context, use

    def _chains(self) -> Iterator[tuple[int, ast.Await]]:
        """Yield ids of `x` in `await x.y` and `await x[y]`: the `await` is not for `x` itself."""
        for node, _ in self._survey.each(ast.Await):
            inner = node.value
            while True:
                if isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                    inner = inner.func.value
                else:
                    break
                yield id(inner), node

    def _await(self, node: ast.Await, context: Context) -> None:
        if not context.scope.asynchronous:
            if not _in_generator(context):
                self._outside(node, context, "await")
            return
        value = node.value
        symbol = self._symbols.of(value, context)
        rule, edits = "not-awaitable", tuple[Edit, ...]()
        if symbol is not None and symbol.kind == Kind.TOOL:
            rule = "not-called"
            call = f"`await {symbol.name}(...)`"
            message = f"{quoted(symbol.name)} is awaited but not called: {call}"
        elif isinstance(value, ast.ListComp | ast.List | ast.GeneratorExp | ast.Tuple):
            message = (
                "several calls are awaited with `await asyncio.gather(*[...])`; a list itself "
                "cannot be awaited"
            )
        elif isinstance(value, ast.Call) and (
            self._symbols.is_builtin(value.func, SHOWING)
            or not DATA_MEMBERS.isdisjoint(self._symbols.dotted(value.func, context))
        ):
            name = quoted(f"{ast.unparse(value.func)}(...)")
            message, edits = f"{name} is not awaited; leave out `await`", (Edit("bare", node),)
        else:
            return
        self._report.add(node, rule, self._survey.raises(context, "TypeError"), message, edits)

    def _outside(self, node: ast.AST, context: Context, what: str) -> None:
        scope = context.scope.function()
        edits: tuple[Edit, ...] = ()
        if scope.kind == "class":
            where = "in a class's body; move it into an `async def`, or above the class"
        elif isinstance(scope.node, ast.FunctionDef):
            name = scope.node.name
            where = (
                f"in {quoted(name)}, which is no async function; write `async def {name}(...)` and "
                f"`await {name}(...)` where it is called"
            )
            edits = self._make_asynchronous(scope.node)
        else:
            where = "in a `lambda`, which cannot await; write an `async def` instead"
        self._report.add(node, "await-outside-async", "deny", f"`{what}` {where}", edits)

    def _make_asynchronous(self, function: ast.FunctionDef) -> tuple[Edit, ...]:
        """Return the edits that make a function asynchronous and await its calls.

        There are none if a call is not awaited at once, or made where `await` is not allowed.
        """
        survey, name = self._survey, function.name
        calls = {id(node.func): (node, context) for node, context in survey.every(ast.Call)}
        as_data = {id(value) for value, _, _ in self._uses()}
        as_data |= {id(node.value) for node, _ in survey.every(ast.Expr, ast.Await)}
        for node, _ in survey.every(ast.Assign):
            if getattr(node.targets[0], "id", None) not in (None, *self._handed_on):
                as_data.add(id(node.value))
        edits = [Edit("asynchronous", function)]
        for node, context in survey.every(ast.Name):
            if node.id == name:
                call, context = calls.get(id(node), (None, context))
                one = self._await_edits(call, context) if id(call) in as_data else ()
                if call is None or not one:
                    return ()
                edits += one if id(call) not in self._awaits else ()
        generator = any(scope.node is function and scope.generator for scope in survey.functions)
        named = sum(getattr(scope.node, "name", "") == name for scope in survey.functions)
        methods = any(node.attr == name for node, _ in survey.every(ast.Attribute))
        unclear = generator or methods or named > 1 or function.decorator_list
        return () if unclear else tuple(edits)

    def _gather(self, node: ast.Call, context: Context) -> None:
        symbol = self._symbols.of(node.func, context)
        if symbol is None or symbol.dotted != "asyncio.gather" or not node.args:
            return
        first, severity = node.args[0], self._survey.raises(context, "TypeError")
        if isinstance(first, ast.List | ast.ListComp | ast.GeneratorExp):
            message = "`asyncio.gather` takes the calls one by one: put `*` before the list"
            edits = () if isinstance(first, ast.GeneratorExp) else (Edit("star", first),)
            self._report.add(first, "gather-list", severity, message, edits)
        for one in node.args:
            call = self._symbols.of(one.value, context) if isinstance(one, ast.Await) else None
            if call is not None and call.kind == Kind.COROUTINE and call.tool is not None:
                message = "`asyncio.gather` takes calls without `await`"
                self._report.add(one, "not-awaitable", severity, message, (Edit("bare", one),))


def _in_generator(context: Context) -> bool:
    inner = takewhile(lambda scope: scope.kind == "comprehension", context.scope.chain())
    return any(scope.generator for scope in inner)
