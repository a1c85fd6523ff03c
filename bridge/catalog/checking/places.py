"""Scopes of a program, and what has to be known of a spot in it. Shapes only."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Bound = ast.expr | Function | str | None
"""What a name is given: an expression, a function, "import:<dotted>"; None if that is unclear."""


@dataclass(eq=False)
class Scope:
    """One namespace.

    Attributes:
        kind: "module", "function", "class" or "comprehension".
        bound: What each name is given here, with the places of these.
        node: The function, if it is one.
        generator: Whether the function yields, or a comprehension is a generator.
    """

    kind: str
    parent: Scope | None = None
    node: Function | None = None
    bound: dict[str, list[tuple[Bound, Place]]] = field(default_factory=dict)
    generator: bool = False

    def function(self) -> Scope:
        """Return the scope of the function around, or of the class or module that has none."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope

    @property
    def asynchronous(self) -> bool:
        """Whether `await` may stand here."""
        scope = self.function()
        return scope.kind == "module" or isinstance(scope.node, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Place:
    """Where a node stands.

    Attributes:
        caught: Names of exceptions that do not end the program when raised here.
        conditional: Whether something that is only known at run time decides if it is reached.
        dead: Whether it is never reached.
        last: Whether it is the program's last statement.
    """

    scope: Scope
    caught: frozenset[str] = frozenset()
    conditional: bool = False
    dead: bool = False
    last: bool = False

    def but(
        self,
        *,
        scope: Scope | None = None,
        caught: frozenset[str] = frozenset(),
        conditional: bool = False,
        dead: bool = False,
    ) -> Place:
        """Return the place of something inside."""
        return Place(
            scope=scope or self.scope,
            caught=self.caught | caught if caught else self.caught,
            conditional=self.conditional or conditional,
            dead=self.dead or dead,
        )
