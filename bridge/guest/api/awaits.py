"""Removes `await` before the plain helpers of `runtime`."""

from __future__ import annotations

from bridge.guest.protocol.helpers import PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast


def strip_await(tree: ast.Module) -> None:
    """Remove each `await` before a call of a plain helper, unless the program redefines it."""
    import ast  # slow; only for programs that mention such a helper

    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)

    def is_plain(function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id in PLAIN - own
        if not isinstance(function, ast.Attribute) or function.attr not in PLAIN:
            return False
        owner = function.value
        if isinstance(owner, ast.Attribute):
            return owner.attr == "runtime"
        return isinstance(owner, ast.Name) and owner.id in {"mcp", "runtime"} - own

    class Stripper(ast.NodeTransformer):
        def visit_Await(self, node: ast.Await) -> ast.AST:
            self.generic_visit(node)
            value = node.value
            return value if isinstance(value, ast.Call) and is_plain(value.func) else node

    Stripper().visit(tree)
