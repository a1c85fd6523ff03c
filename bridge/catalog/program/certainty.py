"""How sure a mistake is: whether it ends the program in whatever way that is run.

What is caught, or never reached, is not certain; nor is anything in a program that plays with
names. In a function, all that is caught anywhere in the program counts as caught around it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from bridge.catalog.program.survey import Place, Scope, Survey, catches
from bridge.model import Severity


class Certainty:
    """Judges places of one program."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    @cached_property
    def read_names(self) -> frozenset[str]:
        """Names that anything reads. Programs without mistakes never ask."""
        names = self._survey.each(ast.Name)
        return frozenset(node.id for node, _ in names if isinstance(node.ctx, ast.Load))

    def raises(self, place: Place, kind: str, *, later: bool = False) -> Severity:
        """Return the severity of what raises `kind`.

        Args:
            later: Whether it is raised where something is awaited, which may be anywhere.
        """
        caught = place.caught
        if later or place.scope.holder() is not self._survey.root:
            caught |= self._survey.caught
        return "note" if catches(caught, kind) else self.happens(place)

    def happens(self, place: Place) -> Severity:
        """Return the severity of what raises nothing, and does not do what is meant."""
        runs = id(place.scope.holder()) in self._called
        return "deny" if runs and not self._survey.tricky else "note"

    @cached_property
    def _called(self) -> set[int]:
        """Functions that something reaches, beginning with the program itself."""
        survey = self._survey
        by_name: defaultdict[str, list[Scope]] = defaultdict(list)
        reached = [survey.root]
        for scope in survey.functions:
            node, parent = scope.node, scope.parent
            if isinstance(node, ast.Lambda) or node is None or parent is None:
                continue
            method = parent.kind == "class"
            if not method:
                by_name[node.name].append(scope)
            if node.decorator_list or (method and self._is_named(node.name)):
                # Called through objects, or by whatever decorates it.
                reached.append(scope)
        uses: defaultdict[int, list[Scope]] = defaultdict(list)
        for node, place in survey.each(ast.Name):
            if node.id in by_name and isinstance(node.ctx, ast.Load):
                owner = survey.owner(node.id, place)
                named = [scope for scope in by_name[node.id] if scope.parent is owner]
                uses[id(place.scope.holder())] += named
        found: set[int] = set()
        while reached:
            scope = reached.pop()
            if id(scope) not in found:
                found.add(id(scope))
                reached += uses[id(scope)]
        return found

    def _is_named(self, method: str) -> bool:
        """Return whether anything names a method, or Python itself calls it."""
        if method.startswith("__") or method in self.read_names or method in self._survey.words:
            return True
        return method in self._attributes

    @cached_property
    def _attributes(self) -> frozenset[str]:
        return frozenset(node.attr for node, _ in self._survey.each(ast.Attribute))
