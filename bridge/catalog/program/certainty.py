"""Decides whether a mistake is certain: whether it ends the program in every possible run.

An error that is caught or may not be reached is not certain; nor is any in a program that sets
names dynamically. A function may be called from anywhere, so an exception that is caught anywhere
in the program counts as caught inside it. What calls a method is not followed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from bridge.catalog.program.survey import Context, Scope, Survey, catches
from bridge.model import Severity


class Certainty:
    """Decides the severity of mistakes in one program: "deny" if certain, else "note"."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    @cached_property
    def read_names(self) -> frozenset[str]:
        """Names that the program reads. Computed only for programs with mistakes."""
        names = self._survey.each(ast.Name)
        return frozenset(node.id for node, _ in names if isinstance(node.ctx, ast.Load))

    def raises(self, context: Context, kind: str, *, later: bool = False) -> Severity:
        """Return the severity of a mistake that raises the exception `kind`.

        Args:
            later: Whether it is raised at an `await` elsewhere, which may be anywhere.
        """
        caught = context.caught
        if later or context.scope.holder() is not self._survey.root:
            caught |= self._survey.caught
        return "note" if catches(caught, kind) else self.happens(context)

    def happens(self, context: Context) -> Severity:
        """Return the severity of a mistake that raises nothing but has not the intended effect."""
        runs = id(context.scope.holder()) in self._called
        return "deny" if runs and not self._survey.tricky else "note"

    @cached_property
    def _called(self) -> set[int]:
        """Ids of the function scopes that the program's statements reach, also indirectly."""
        survey = self._survey
        by_name: defaultdict[str, list[Scope]] = defaultdict(list)
        reached = [survey.root]
        for scope in survey.functions:
            node, parent = scope.node, scope.parent
            if isinstance(node, ast.Lambda) or node is None or parent is None:
                continue
            if parent.kind != "class":
                by_name[node.name].append(scope)
            if node.decorator_list:
                # Its decorator may call it.
                reached.append(scope)
        uses: defaultdict[int, list[Scope]] = defaultdict(list)
        for node, context in survey.each(ast.Name):
            if node.id in by_name and isinstance(node.ctx, ast.Load):
                owner = survey.owner(node.id, context)
                named = [scope for scope in by_name[node.id] if scope.parent is owner]
                uses[id(context.scope.holder())] += named
        found: set[int] = set()
        while reached:
            scope = reached.pop()
            if id(scope) not in found:
                found.add(id(scope))
                reached += uses[id(scope)]
        return found
