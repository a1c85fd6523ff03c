"""Fail when a docstring documents a parameter or an attribute that does not exist.

Below `Args:` stand parameters of the function, or of the class's `__init__`; below `Attributes:`
what the class or its bases define. A class may have any attribute if a base is of another project,
or if several classes have the base's name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("bridge", "scripts", "tests")
OTHERS = ("node_modules", "golden")
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
ENTRY = re.compile(r"^    (\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*): ")
FIELDLESS = {"object", "Protocol", "NamedTuple", "Generic", "ABC", "Exception", "TypedDict"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def entries(docstring: str, section: str) -> Iterator[str]:
    """Yield the names that stand in one section of a docstring."""
    inside = False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            found = SECTION.match(line)
            inside = found is not None and found[1] == section
        elif inside and (entry := ENTRY.match(line)):
            yield from (name.strip("* ") for name in entry[1].split(","))


def parameters(function: Function) -> set[str]:
    """Return the names of a function's parameters."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += filter(None, (arguments.vararg, arguments.kwarg))
    return {each.arg for each in every}


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class itself defines, on itself or on `self`."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, Function):
            found.add(each.name)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found.add(each.attr)
    for each in node.body:
        targets = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.AnnAssign):
            targets = [each.target]
        for target in targets:
            found.update(part.id for part in ast.walk(target) if isinstance(part, ast.Name))
    return found


def inherited(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str] | None:
    """Return the names that a class and its bases define; None if a base is not known."""
    found = attributes(node)
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        name = ast.unparse(plain).rpartition(".")[2]
        if name in FIELDLESS:
            continue
        known = classes.get(name)
        more = None if known is None or known is node else inherited(known, classes)
        if more is None:
            return None
        found |= more
    return found


def problems(name: str, tree: ast.Module, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield a complaint for each name that a docstring of a module documents and no one defines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | Function):
            continue
        docstring = ast.get_docstring(node) or ""
        known: set[str] | None
        if isinstance(node, ast.ClassDef):
            init = [each for each in node.body if isinstance(each, Function)]
            init = [each for each in init if each.name == "__init__"]
            known = inherited(node, classes)
            taken = parameters(init[0]) if init else known
        else:
            known, taken = set(), parameters(node)
        for section, names in (("Args", taken), ("Attributes", known)):
            for entry in entries(docstring, section):
                if names is not None and entry not in names:
                    where = f"{name}:{node.lineno}: {node.name}"
                    yield f"{where} documents {entry!r}, which is not there"


def main() -> int:
    """Check every Python file of the project; return 1 if a docstring names what is not there."""
    trees = {}
    for directory in DIRECTORIES:
        for path in sorted((ROOT / directory).rglob("*.py")):
            if not set(OTHERS) & set(path.parts):
                trees[str(path.relative_to(ROOT))] = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    every = [node for node in nodes if isinstance(node, ast.ClassDef)]
    several = {name for name, count in Counter(node.name for node in every).items() if count > 1}
    classes = {node.name: node for node in every if node.name not in several}
    found = [problem for name, tree in trees.items() for problem in problems(name, tree, classes)]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
