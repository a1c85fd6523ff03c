"""How sure a mistake is: whether it ends the program, whoever calls what holds it.

Owns the question which exceptions are caught around a function, by looking at every place that
names it. What is caught, or never reached, is not certain; nor is anything in a program that plays
with names.
"""

from __future__ import annotations

import ast
from functools import cached_property

from bridge.catalog.checking.handlers import EVERYTHING, NOTHING, catches
from bridge.catalog.checking.places import Place, Scope
from bridge.catalog.checking.survey import Survey
from bridge.model import Severity

MAX_DEPTH = 16
"""Functions calling functions that are followed; beyond that, everything counts as caught."""

_RUNNERS = frozenset({"run", "run_until_complete"})


class Certainty:
    """Judges places of one program."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._caught: dict[int, frozenset[str] | None] = {}

    def is_read(self, name: str) -> bool:
        """Return whether anything reads a name."""
        return name in self._uses

    @cached_property
    def _uses(self) -> dict[str, list[tuple[ast.Name, Place]]]:
        """Where each name is read. Programs without mistakes never ask."""
        found: dict[str, list[tuple[ast.Name, Place]]] = {}
        for node, place in self._survey.each(ast.Name):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append((node, place))
        return found

    def raises(self, place: Place, kind: str, *, later: bool = False) -> Severity:
        """Return the severity of what raises `kind`.

        Args:
            later: Whether it is raised where something is awaited, which may be anywhere.
        """
        caught = self._around(place.scope, 0)
        if caught is None:
            # In a function that nothing calls.
            return "note"
        caught |= place.caught
        if later:
            caught |= self._survey.caught
        return "note" if self._survey.tricky or catches(caught, kind) else "deny"

    def happens(self, place: Place) -> Severity:
        """Return the severity of what raises nothing, and does not do what is meant."""
        return "note" if self._survey.tricky or self._around(place.scope, 0) is None else "deny"

    def _around(self, scope: Scope, depth: int) -> frozenset[str] | None:
        """Return what is caught around all of a scope; None if nothing ever runs it."""
        holder = scope.function()
        while holder.kind == "class" and holder.parent is not None:
            holder = holder.parent.function()
        if holder.kind == "module":
            return NOTHING
        if id(holder) in self._caught:
            return self._caught[id(holder)]
        # A function that calls itself adds nothing to what is caught.
        self._caught[id(holder)] = NOTHING
        found = self._callers(holder, depth)
        self._caught[id(holder)] = found
        return found

    def _callers(self, holder: Scope, depth: int) -> frozenset[str] | None:
        node, parent = holder.node, holder.parent
        if depth >= MAX_DEPTH:
            return EVERYTHING
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or parent is None:
            return self._survey.caught
        if parent.kind == "class" and not node.decorator_list and not self._is_named(node.name):
            return None
        if parent.kind == "class" or node.decorator_list:
            # Called through objects, or by whatever decorates it.
            return self._survey.caught
        found: frozenset[str] | None = None
        for use, place in self._uses.get(node.name, ()):
            if self._survey.owner(node.name, place) is not parent:
                continue
            if place.scope.function() is holder:
                continue
            around = self._around(place.scope, depth + 1)
            if around is None:
                continue
            called, awaited = self._direct
            direct = awaited if isinstance(node, ast.AsyncFunctionDef) else called
            caught = around | place.caught
            if id(use) not in direct:
                caught |= self._survey.caught
            found = caught if found is None else found | caught
        return found

    def _is_named(self, method: str) -> bool:
        """Return whether anything names a method, or Python itself calls it."""
        if method.startswith("__") or method in self._uses or method in self._survey.words:
            return True
        return method in self._attributes

    @cached_property
    def _attributes(self) -> frozenset[str]:
        nodes = (node for node, _ in self._survey.each(ast.Attribute))
        return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))

    @cached_property
    def _direct(self) -> tuple[set[int], set[int]]:
        """Return the names that are called on the spot, and those whose calls are awaited there."""
        called: set[int] = set()
        awaited: set[int] = set()
        for node, _ in self._survey.each(ast.Call):
            assert isinstance(node, ast.Call)
            if isinstance(node.func, ast.Name):
                called.add(id(node.func))
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _RUNNERS and node.args:
                # asyncio.run(main())
                awaited.update(_callee(node.args[0]))
        for node, _ in self._survey.each(ast.Await):
            assert isinstance(node, ast.Await)
            awaited.update(_callee(node.value))
        body = self._survey.tree.body
        if body and isinstance(body[-1], ast.Expr):
            # The guest awaits what the last expression is.
            awaited.update(_callee(body[-1].value))
        return called, awaited


def _callee(node: ast.expr) -> tuple[int, ...]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return (id(node.func),)
    return ()
