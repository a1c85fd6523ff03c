"""`await` where it is missing, and where it cannot be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.meaning import (
    BUILTIN,
    COROUTINE,
    FUTURE,
    HELPER,
    MEMBER,
    TOOL,
    Meaning,
    Meanings,
)
from bridge.catalog.checking.places import Place, Scope
from bridge.catalog.checking.report import Report, quoted
from bridge.catalog.checking.survey import Survey
from bridge.catalog.checking.tables import (
    CONSUMERS,
    DATA_BUILTINS,
    DATA_MEMBERS,
    NOT_AWAITABLE,
    SHOWING,
    SPARED,
)
from bridge.model import Severity

_OWN_ATTRIBUTES = frozenset(
    """
    close send throw cr_await cr_code cr_frame cr_origin cr_running cr_suspended
    """.split()  # noqa: SIM905 - as words they can be read
)
"""What a coroutine itself has."""

_GATHER = "asyncio.gather"

_MAX_CHAIN = 32
"""Attributes, items and calls between an `await` and what it was meant for."""


class Awaits:
    """Checks what is done with calls that have to be awaited."""

    def __init__(
        self, survey: Survey, meanings: Meanings, certainty: Certainty, report: Report
    ) -> None:
        self._survey = survey
        self._meanings = meanings
        self._certainty = certainty
        self._report = report
        self._under_await = frozenset(self._chains())
        values = [node.value for node, _ in survey.each(ast.Await) if isinstance(node, ast.Await)]
        self._awaited_names = {value.id for value in values if isinstance(value, ast.Name)}

    def check(self, tree: ast.Module) -> None:
        """Report what is wrong."""
        for node, place in self._survey.each(ast.Expr):
            assert isinstance(node, ast.Expr)
            self._statement(node, place)
        for node, place in self._survey.each(ast.Assign):
            assert isinstance(node, ast.Assign)
            self._assigned(node, place)
        for value, place, use in self._uses():
            self._used(value, place, use)
        for node, place in self._survey.each(ast.Await):
            assert isinstance(node, ast.Await)
            self._await(node, place)
        for node, place in self._survey.each(ast.AsyncFor, ast.AsyncWith):
            if not place.scope.asynchronous or place.scope.function().kind == "class":
                what = "async for" if isinstance(node, ast.AsyncFor) else "async with"
                self._outside(node, place, what)
        for node, place in self._survey.each(ast.Call):
            assert isinstance(node, ast.Call)
            self._call(node, place)
        for node, place in self._survey.each(ast.Return):
            if place.scope.function().kind != "function":
                message = (
                    "`return` outside a function; end the program with the value as its last "
                    "expression instead, or `print` it"
                )
                self._report.add(node, "syntax", "deny", message)
        for node, place in self._survey.each(ast.Yield, ast.YieldFrom):
            if place.scope.function().kind != "function":
                message = "`yield` outside a function; collect the values in a list instead"
                self._report.add(node, "syntax", "deny", message)

    # --- missing ---------------------------------------------------------------------------------

    def _statement(self, node: ast.Expr, place: Place) -> None:
        if place.last:
            # The guest awaits what the program ends with.
            return
        meaning = self._meanings.of(node.value, place)
        if meaning is None:
            return
        if meaning.kind == COROUTINE:
            severity = self._certainty.happens(place)
            if not _of_program(meaning):
                severity = "note"
            self._missing(node, severity, meaning, "is called without `await`, so nothing happens")
        elif meaning.kind == TOOL:
            message = f"{quoted(meaning.name)} is only named; call it: `await {meaning.name}(...)`"
            self._report.add(node, "not-called", "note", message)

    def _assigned(self, node: ast.Assign, place: Place) -> None:
        """`x = tool()`: unpacked on the spot, or never looked at again."""
        target = node.targets[0]
        meaning = self._meanings.of(node.value, place)
        if meaning is None or meaning.kind != COROUTINE or len(node.targets) != 1:
            return
        if isinstance(target, ast.Tuple | ast.List):
            severity = self._certainty.raises(place, "TypeError")
            self._missing(node, severity, meaning, "is unpacked without `await`")
        elif isinstance(target, ast.Name) and not self._certainty.is_read(target.id):
            if target.id in self._survey.shared or place.scope.kind == "class":
                return
            severity = self._certainty.happens(place)
            if not _of_program(meaning):
                severity = "note"
            self._missing(node, severity, meaning, "is called without `await`, so nothing happens")

    def _used(self, node: ast.expr, place: Place, use: str) -> None:
        if not isinstance(node, ast.Name | ast.Call):
            return
        meaning = self._meanings.of(node, place)
        if meaning is None or meaning.kind not in (COROUTINE, FUTURE):
            return
        if meaning.kind == FUTURE and use.startswith("is taken for"):
            # Tasks are compared and looked up as what they are.
            return
        known = meaning.kind == FUTURE or self._awaited_elsewhere(node)
        if isinstance(node, ast.Name) and use.startswith("is shown") and known:
            # Whoever looks at it and awaits it later knows what it is.
            return
        if use.startswith(("is shown", "is taken for")):
            severity = self._certainty.happens(place)
            if isinstance(node, ast.Name) and node.id in self._handed_on:
                severity = "note"
        else:
            severity = self._certainty.raises(place, "TypeError")
        if id(node) in self._under_await:
            call = f"{meaning.name}(...)"
            message = (
                f"`await` waits for what comes after the dot or the bracket, not for "
                f"{quoted(call)}; put parentheses around it: `(await {call})`"
            )
            self._report.add(node, "missing-await", severity, message)
            return
        if isinstance(node, ast.Name):
            call = f"{meaning.name}(...)"
            message = (
                f"{quoted(node.id)} {use}, but it is {quoted(call)} without its value; write "
                f"`{node.id} = await {call}`"
            )
            self._report.add(node, "missing-await", severity, message)
            return
        self._missing(node, severity, meaning, f"{use} without `await`")

    def _awaited_elsewhere(self, name: ast.expr) -> bool:
        return isinstance(name, ast.Name) and name.id in self._awaited_names

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        """Names that are used as more than data: given to `gather`, put into a list, returned."""
        as_data = {id(value) for value, _, _ in self._uses()}
        return frozenset(
            node.id
            for node, _ in self._survey.each(ast.Name)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in as_data
        )

    def _missing(self, node: ast.AST, severity: Severity, meaning: Meaning, problem: str) -> None:
        message = f"{quoted(meaning.name + '(...)')} {problem}; write `await {meaning.name}(...)`"
        if meaning.kind == FUTURE:
            message += " before its values are used"
        self._report.add(node, "missing-await", severity, message)

    def _uses(self) -> Iterator[tuple[ast.expr, Place, str]]:
        """Yield expressions that are used as data, with how."""
        for node, place in self._survey.each(ast.Subscript):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                yield node.value, place, "is indexed"
        for node, place in self._survey.each(ast.Attribute):
            assert isinstance(node, ast.Attribute)
            meaning = self._meanings.of(node.value, place)
            waits = meaning is not None and meaning.kind == COROUTINE
            if waits and node.attr not in _OWN_ATTRIBUTES and not node.attr.startswith("__"):
                yield node.value, place, f"is asked for {quoted(node.attr)}"
        for node, place in self._survey.each(ast.For):
            assert isinstance(node, ast.For)
            yield node.iter, place, "is iterated over"
        for node, place in self._survey.each(
            ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
        ):
            first = getattr(node, "generators")[0]  # noqa: B009 - all four have it
            if not first.is_async:
                yield first.iter, place, "is iterated over"
        for node, place in self._survey.each(ast.Starred):
            assert isinstance(node, ast.Starred)
            yield node.value, place, "is unpacked"
        yield from self._operands()
        yield from self._arguments()

    def _operands(self) -> Iterator[tuple[ast.expr, Place, str]]:
        for node, place in self._survey.each(ast.BinOp):
            assert isinstance(node, ast.BinOp)
            yield node.left, place, "is computed with"
            yield node.right, place, "is computed with"
        for node, place in self._survey.each(ast.Compare):
            assert isinstance(node, ast.Compare)
            if not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
                for operand in (node.left, *node.comparators):
                    yield operand, place, "is taken for a value"
        for node, place in self._survey.each(ast.UnaryOp):
            assert isinstance(node, ast.UnaryOp)
            yield node.operand, place, "is taken for a value"
        for node, place in self._survey.each(ast.If, ast.While, ast.IfExp):
            assert isinstance(node, ast.If | ast.While | ast.IfExp)
            if isinstance(node.test, ast.Call):
                yield node.test, place, "is taken for true"
        for node, place in self._survey.each(ast.FormattedValue):
            assert isinstance(node, ast.FormattedValue)
            yield node.value, place, "is shown"
        for node, place in self._survey.each(ast.Dict):
            assert isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield value, place, "is unpacked"

    def _arguments(self) -> Iterator[tuple[ast.expr, Place, str]]:
        for node, place in self._survey.each(ast.Call):
            assert isinstance(node, ast.Call)
            function = node.func
            for keyword in node.keywords:
                if keyword.arg is None:
                    yield keyword.value, place, "is unpacked"
            use = ""
            if self._meanings.is_builtin(function, SHOWING):
                use = "is shown"
            elif self._meanings.is_builtin(function, DATA_BUILTINS):
                use = f"is given to {quoted(getattr(function, 'id', ''))}"
                if getattr(function, "id", "") in ("filter", "map"):
                    use = ""
            elif isinstance(function, ast.Attribute):
                meaning = self._meanings.of(function, place)
                if meaning is not None and meaning.kind == MEMBER and meaning.name in DATA_MEMBERS:
                    use = f"is given to {quoted(meaning.name)}"
                elif function.attr == "join" and isinstance(function.value, ast.Constant):
                    use = "is joined"
            if use:
                for argument in node.args:
                    yield argument, place, use

    # --- too much --------------------------------------------------------------------------------

    def _await(self, node: ast.Await, place: Place) -> None:
        scope = place.scope.function()
        if not place.scope.asynchronous or scope.kind == "class":
            if not _in_generator(place):
                self._outside(node, place, "await")
            return
        value = node.value
        meaning = self._meanings.of(value, place)
        if meaning is not None and meaning.kind == TOOL:
            message = (
                f"{quoted(meaning.name)} is awaited but not called: `await {meaning.name}(...)`"
            )
            severity = self._certainty.raises(place, "TypeError")
            self._report.add(node, "not-called", severity, message)
        elif isinstance(value, ast.Call):
            self._await_call(node, value, place)
        elif isinstance(value, ast.ListComp | ast.List | ast.GeneratorExp | ast.Tuple):
            message = (
                "several calls are awaited with `await asyncio.gather(*[...])`; a list itself "
                "cannot be awaited"
            )
            severity = self._certainty.raises(place, "TypeError")
            self._report.add(node, "not-awaitable", severity, message)

    def _await_call(self, node: ast.Await, call: ast.Call, place: Place) -> None:
        called = self._meanings.of(call.func, place)
        if called is None:
            return
        helper = called.helper if called.kind == HELPER else None
        sync = helper is not None and not helper.asynchronous and helper.name not in SPARED
        sync = sync or (called.kind == MEMBER and called.name in NOT_AWAITABLE)
        sync = sync or (called.kind == BUILTIN and called.name in DATA_BUILTINS | SHOWING)
        if not sync or (called.kind == BUILTIN and called.name in ("max", "min", "next", "abs")):
            return
        fix = f"write `{called.name}(...)` without `await`"
        if called.name == "time.sleep":
            fix = "write `await asyncio.sleep(...)`, with `import asyncio`"
        message = f"{quoted(called.name + '(...)')} cannot be awaited; {fix}"
        self._report.add(node, "not-awaitable", self._certainty.raises(place, "TypeError"), message)

    def _outside(self, node: ast.AST, place: Place, what: str) -> None:
        """Report what only an `async def` may hold: no program with it compiles."""
        scope = place.scope.function()
        if scope.kind == "class":
            where = "in a class's body; move it into an `async def`, or above the class"
        elif isinstance(scope.node, ast.FunctionDef):
            name = scope.node.name
            where = (
                f"in {quoted(name)}, which is no async function; write `async def {name}(...)` and "
                f"`await {name}(...)` where it is called"
            )
        else:
            where = "in a `lambda`, which cannot wait; write an `async def` instead"
        self._report.add(node, "await-outside-async", "deny", f"`{what}` {where}")

    def _call(self, node: ast.Call, place: Place) -> None:
        if not node.args:
            return
        first = node.args[0]
        if isinstance(first, ast.GeneratorExp):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            consumed = self._meanings.is_builtin(node.func, CONSUMERS) or (
                name == "join" and isinstance(getattr(node.func, "value", None), ast.Constant)
            )
            if consumed and _waits(first):
                message = (
                    f"{quoted(name + '(...)')} cannot go through values that are awaited one by "
                    f"one; give it a list: `{name}([await ... for ...])`"
                )
                severity = self._certainty.raises(place, "TypeError")
                self._report.add(node, "async-generator", severity, message)
        meaning = self._meanings.of(node.func, place)
        gathers = meaning is not None and meaning.kind == MEMBER and meaning.name == _GATHER
        if gathers and isinstance(first, ast.List | ast.ListComp | ast.GeneratorExp):
            message = "`asyncio.gather` takes the calls one by one: put `*` before the list"
            severity = self._certainty.raises(place, "TypeError")
            self._report.add(first, "gather-list", severity, message)

    def _chains(self) -> Iterator[int]:
        """Yield what an `await` in front is not for, because of a dot or a bracket after it."""
        for node, _ in self._survey.each(ast.Await):
            assert isinstance(node, ast.Await)
            inner: ast.expr = node.value
            for _step in range(_MAX_CHAIN):
                if isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                    inner = inner.func.value
                else:
                    break
                yield id(inner)


def _in_generator(place: Place) -> bool:
    """Return whether a generator expression waits, which whoever goes through it does."""
    scope: Scope | None = place.scope
    while scope is not None and scope.kind == "comprehension":
        if scope.generator:
            return True
        scope = scope.parent
    return False


def _of_program(meaning: Meaning) -> bool:
    """Return whether something of a server's or of the program's is lost: no `asyncio.sleep(1)`."""
    return not (meaning.tool is None and meaning.function is None and meaning.helper is None)


def _waits(node: ast.GeneratorExp) -> bool:
    """Return whether a generator waits while it is gone through."""
    if any(item.is_async for item in node.generators):
        return True
    parts = [node.elt, *(test for item in node.generators for test in item.ifs)]
    stack: list[ast.AST] = list(parts)
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Await):
            return True
        if not isinstance(part, ast.Lambda | ast.GeneratorExp):
            stack.extend(ast.iter_child_nodes(part))
    return False
