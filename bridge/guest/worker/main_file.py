"""The file of a program, for readers of `__file__` and for processes that import `__main__`.

A process of a `spawn` or `forkserver` pool imports the program. Without a `__main__` guard, or with
top-level `await`, it can have the program's definitions only.
"""

from __future__ import annotations

import _ast

from bridge.guest.worker.program import TREE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Set

_DEFINITIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef)

_written: Set[str] = set()


def write_file(path: str, source: str) -> None:
    """Write a program's file, unless a file of the user's has its name."""
    try:
        with open(path, "w" if path in _written else "x", encoding="utf-8") as file:
            file.write(importable(source))
        _written.add(path)
    except Exception:
        # The directory is full or has such a file, or an indented text: it can do without.
        return


def importable(source: str) -> str:
    """Return a program's text as another process can import it."""
    tree: Any = compile(source, "", "exec", TREE_FLAGS, dont_inherit=True)
    if any(map(_is_main, tree.body)):
        try:
            compile(source, "", "exec", dont_inherit=True)
        except SyntaxError:
            pass  # it awaits at top level
        else:
            return source
    lines = source.splitlines(keepends=True)
    kept = {number for node in tree.body if _defines(node) for number in _lines(node)}
    return "".join(line if n in kept else "\n" for n, line in enumerate(lines, 1))


def _lines(node: Any) -> range:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return range(first, node.end_lineno + 1)


def _defines(node: Any) -> bool:
    if isinstance(node, (_ast.Import, _ast.ImportFrom)):
        names = [getattr(node, "module", None) or node.names[0].name]
        return not names[0].startswith("mcp")
    assigns = isinstance(node, (_ast.Assign, _ast.AnnAssign)) and not _computes(node)
    return assigns or isinstance(node, _DEFINITIONS)


def _computes(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_computes, node))
    return isinstance(node, (_ast.Call, _ast.Await)) or (
        isinstance(node, _ast.AST)
        and any(_computes(getattr(node, field, None)) for field in node._fields)
    )


def _is_main(node: Any) -> bool:
    test = node.test if isinstance(node, _ast.If) and not node.orelse else None
    return (
        isinstance(test, _ast.Compare)
        and getattr(test.left, "id", "") == "__name__"
        and isinstance(test.ops[0], _ast.Eq)
    )
