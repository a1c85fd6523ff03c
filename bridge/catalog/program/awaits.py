"""`await` where it is missing, and where it cannot be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from bridge.catalog.program.certainty import Certainty
from bridge.catalog.program.meaning import COROUTINE, FUTURE, HELPER, TOOL, Meaning, Meanings
from bridge.catalog.program.report import Report, quoted
from bridge.catalog.program.survey import Place, Scope, Survey
from bridge.catalog.program.tables import DATA_BUILTINS, DATA_MEMBERS, SHOWING, SPARED
from bridge.model import Severity

_OWN_ATTRIBUTES = frozenset(
    """
    close send throw cr_await cr_code cr_frame cr_origin cr_running cr_suspended
    """.split()  # noqa: SIM905 - as words they can be read
)
"""What a coroutine itself has."""

_MAX_CHAIN = 32
"""Attributes, items and calls between an `await` and what it was meant for."""

_SHOWN = "is shown"
_TAKEN = "is taken for"


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
        values = [node.value for node, _ in survey.each(ast.Await)]
        self._awaited_names = {value.id for value in values if isinstance(value, ast.Name)}

    def check(self) -> None:
        """Report what is wrong."""
        for node, place in self._survey.each(ast.Expr):
            if not place.last:
                # The guest awaits what the program ends with.
                self._dropped(node, node.value, place)
        for node, place in self._survey.each(ast.Assign):
            self._assigned(node, place)
        for value, place, use in self._uses():
            if isinstance(value, ast.Name | ast.Call):
                self._used(value, place, use)
        for node, place in self._survey.each(ast.Await):
            self._await(node, place)
        for node, place in self._survey.each(ast.AsyncFor, ast.AsyncWith):
            if not place.scope.asynchronous:
                what = "async for" if isinstance(node, ast.AsyncFor) else "async with"
                self._outside(node, place, what)
        for node, place in self._survey.each(ast.Return):
            if place.scope.function().kind != "function":
                message = (
                    "`return` outside a function; end the program with the value as its last "
                    "expression instead, or `print` it"
                )
                self._report.add(node, "syntax", "deny", message)
        for node, place in self._survey.each(ast.Call):
            self._gather(node, place)

    # --- missing ---------------------------------------------------------------------------------

    def _dropped(self, node: ast.stmt, value: ast.expr, place: Place) -> None:
        meaning = self._meanings.of(value, place)
        if meaning is None:
            return
        if meaning.kind == COROUTINE:
            # Nothing of a server's or of the program's is lost with `asyncio.sleep(1)`.
            lost = meaning.tool or meaning.function or meaning.helper
            severity = self._certainty.happens(place) if lost else "note"
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
        elif isinstance(target, ast.Name) and not self._is_read(target.id, place):
            self._dropped(node, node.value, place)

    def _is_read(self, name: str, place: Place) -> bool:
        """Return whether a variable may be looked at."""
        elsewhere = name in self._survey.shared or place.scope.kind == "class"
        return elsewhere or name in self._certainty.read_names

    def _used(self, node: ast.Name | ast.Call, place: Place, use: str) -> None:
        meaning = self._meanings.of(node, place)
        if meaning is None or meaning.kind not in (COROUTINE, FUTURE):
            return
        named = node.id if isinstance(node, ast.Name) else ""
        future = meaning.kind == FUTURE
        if future and use.startswith(_TAKEN):
            # Tasks are compared and looked up as what they are.
            return
        if named and use.startswith(_SHOWN) and (future or named in self._awaited_names):
            # Whoever looks at it and awaits it later knows what it is.
            return
        if use.startswith((_SHOWN, _TAKEN)):
            severity = "note" if named in self._handed_on else self._certainty.happens(place)
        else:
            severity = self._certainty.raises(place, "TypeError")
        call = f"{meaning.name}(...)"
        if id(node) in self._under_await:
            message = (
                f"`await` waits for what comes after the dot or the bracket, not for "
                f"{quoted(call)}; put parentheses around it: `(await {call})`"
            )
        elif named:
            message = (
                f"{quoted(named)} {use}, but it is {quoted(call)} without its value; write "
                f"`{named} = await {call}`"
            )
        else:
            self._missing(node, severity, meaning, f"{use} without `await`")
            return
        self._report.add(node, "missing-await", severity, message)

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        """Names that are used as more than data: given to `gather`, put into a list, returned."""
        as_data = {id(value) for value, _, _ in self._uses()}
        return frozenset(
            node.id
            for node, _ in self._survey.each(ast.Name)
            if isinstance(node.ctx, ast.Load) and id(node) not in as_data
        )

    def _missing(self, node: ast.AST, severity: Severity, meaning: Meaning, problem: str) -> None:
        message = f"{quoted(meaning.name + '(...)')} {problem}; write `await {meaning.name}(...)`"
        if meaning.kind == FUTURE:
            message += " before its values are used"
        self._report.add(node, "missing-await", severity, message)

    def _uses(self) -> Iterator[tuple[ast.expr, Place, str]]:
        """Yield expressions that are used as data, with how."""
        each = self._survey.each
        for node, place in each(ast.Subscript):
            if isinstance(node.ctx, ast.Load):
                yield node.value, place, "is indexed"
        for node, place in each(ast.Attribute):
            meaning = self._meanings.of(node.value, place)
            waits = meaning is not None and meaning.kind == COROUTINE
            if waits and node.attr not in _OWN_ATTRIBUTES and not node.attr.startswith("__"):
                yield node.value, place, f"is asked for {quoted(node.attr)}"
        for node, place in each(ast.For):
            yield node.iter, place, "is iterated over"
        for node, place in each(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp):
            if not node.generators[0].is_async:
                yield node.generators[0].iter, place, "is iterated over"
        for node, place in each(ast.Starred):
            yield node.value, place, "is unpacked"
        for node, place in each(ast.BinOp):
            yield node.left, place, "is computed with"
            yield node.right, place, "is computed with"
        for node, place in each(ast.Compare):
            if not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
                for operand in (node.left, *node.comparators):
                    yield operand, place, f"{_TAKEN} a value"
        for node, place in each(ast.If, ast.While, ast.IfExp):
            if isinstance(node.test, ast.Call):
                yield node.test, place, f"{_TAKEN} true"
        for node, place in each(ast.FormattedValue):
            yield node.value, place, _SHOWN
        for node, place in each(ast.Call):
            yield from self._given(node, place)

    def _given(self, node: ast.Call, place: Place) -> Iterator[tuple[ast.expr, Place, str]]:
        """Yield arguments of functions that take data."""
        function, use = node.func, ""
        for keyword in node.keywords:
            if keyword.arg is None:
                yield keyword.value, place, "is unpacked"
        if self._meanings.is_builtin(function, SHOWING):
            use = _SHOWN
        elif self._meanings.is_builtin(function, DATA_BUILTINS):
            use = f"is given to {quoted(getattr(function, 'id', ''))}"
        elif isinstance(function, ast.Attribute):
            meaning = self._meanings.of(function, place)
            if meaning is not None and meaning.dotted in DATA_MEMBERS:
                use = f"is given to {quoted(meaning.dotted)}"
            elif function.attr == "join" and isinstance(function.value, ast.Constant):
                use = "is joined"
        if use:
            for argument in node.args:
                yield argument, place, use

    def _chains(self) -> Iterator[int]:
        """Yield what an `await` in front is not for, because of a dot or a bracket after it."""
        for node, _ in self._survey.each(ast.Await):
            inner = node.value
            for _step in range(_MAX_CHAIN):
                if isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                    inner = inner.func.value
                else:
                    break
                yield id(inner)

    # --- too much --------------------------------------------------------------------------------

    def _await(self, node: ast.Await, place: Place) -> None:
        if not place.scope.asynchronous:
            if not _in_generator(place):
                self._outside(node, place, "await")
            return
        value = node.value
        meaning = self._meanings.of(value, place)
        rule = "not-awaitable"
        if meaning is not None and meaning.kind == TOOL:
            rule = "not-called"
            call = f"`await {meaning.name}(...)`"
            message = f"{quoted(meaning.name)} is awaited but not called: {call}"
        elif isinstance(value, ast.ListComp | ast.List | ast.GeneratorExp | ast.Tuple):
            message = (
                "several calls are awaited with `await asyncio.gather(*[...])`; a list itself "
                "cannot be awaited"
            )
        elif isinstance(value, ast.Call):
            called = self._meanings.of(value.func, place)
            helper = called.helper if called is not None and called.kind == HELPER else None
            if called is None or helper is None or helper.asynchronous or helper.name in SPARED:
                return
            call = f"{called.name}(...)"
            message = f"{quoted(call)} cannot be awaited; write `{call}` without `await`"
        else:
            return
        self._report.add(node, rule, self._certainty.raises(place, "TypeError"), message)

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

    def _gather(self, node: ast.Call, place: Place) -> None:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.List | ast.ListComp | ast.GeneratorExp):
            meaning = self._meanings.of(node.func, place)
            if meaning is not None and meaning.dotted == "asyncio.gather":
                message = "`asyncio.gather` takes the calls one by one: put `*` before the list"
                severity = self._certainty.raises(place, "TypeError")
                self._report.add(first, "gather-list", severity, message)


def _in_generator(place: Place) -> bool:
    """Return whether a generator expression waits, which whoever goes through it does."""
    scope: Scope | None = place.scope
    while scope is not None and scope.kind == "comprehension":
        if scope.generator:
            return True
        scope = scope.parent
    return False
