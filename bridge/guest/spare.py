"""`await` before helpers that need none, which programs put there out of habit.

Owns the one change to a program's tree that makes it harmless. Imported by programs that mention
such a helper.
"""

from __future__ import annotations

import ast

from bridge.guest.library import MEMORIES, SKILLS

_PLAIN = frozenset((*MEMORIES, *SKILLS))


def spare(tree: ast.Module) -> None:
    """Take out each `await` before a call of such a helper, unless the program has its own."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
    _Spare(_PLAIN - own, "runtime" in own).visit(tree)


class _Spare(ast.NodeTransformer):
    def __init__(self, plain: "frozenset[str]", other_runtime: bool) -> None:
        self._plain = plain
        self._other_runtime = other_runtime

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        value = node.value
        if isinstance(value, ast.Call) and self._is_plain(value.func):
            return value
        return node

    def _is_plain(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id in self._plain
        if not isinstance(function, ast.Attribute) or function.attr not in _PLAIN:
            return False
        owner = function.value
        if isinstance(owner, ast.Attribute):
            return owner.attr == "runtime"
        return isinstance(owner, ast.Name) and owner.id == "runtime" and not self._other_runtime
