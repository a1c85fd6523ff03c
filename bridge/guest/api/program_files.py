"""File names of programs and skills in tracebacks; removes `await` before plain helpers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Set

FILENAME = "<run_python>"  # A program's file name in tracebacks; a session's programs are numbered.

PROGRAM_FILE = "run_python.py"  # The name of `__file__` in the working directory.

SKILL_HEAD = "<skill "  # The beginning of a skill's file name.
program_files: Set[str] = set()  # File names of programs that came from files.


def is_program(name: str) -> bool:
    return name.startswith(("<run_python", SKILL_HEAD)) or name in program_files


def strip_await(tree: ast.Module) -> None:
    """Remove each `await` before a call of a plain helper, unless the program redefines it."""
    import ast  # slow; only for programs that mention such a helper

    from bridge.guest.protocol.helpers import PLAIN

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
