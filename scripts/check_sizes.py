"""Fail when a file or a function is too long to be read in one go.

The limits are those of the house style: 600 lines a file, 60 lines a function. From 400 lines on, a
file is due to become a package and gets a warning. There is no list of exceptions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("bridge", "tests", "benchmarks", "scripts", "examples")
MAX_FILE_LINES = 600
FILE_LINES_WARNING = 400
MAX_FUNCTION_LINES = 60


def long_functions(source: str, name: str) -> Iterator[str]:
    """Yield a complaint for each function of a module that passes the limit."""
    for node in ast.walk(ast.parse(source, name)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # Decorators are not counted: a table of test cases is data.
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            limit = f"the limit is {MAX_FUNCTION_LINES}"
            yield f"{name}:{node.lineno}: function {node.name} has {length} lines; {limit}"


def main() -> int:
    """Check every Python file of the project; return 1 if any is too long."""
    errors: list[str] = []
    for directory in DIRECTORIES:
        for path in sorted((ROOT / directory).rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            name = str(path.relative_to(ROOT))
            source = path.read_text(encoding="utf-8")
            lines = source.count("\n")
            if lines > MAX_FILE_LINES:
                errors.append(f"{name}: {lines} lines; the limit is {MAX_FILE_LINES}")
            elif lines > FILE_LINES_WARNING:
                print(f"warning: {name}: {lines} lines; from {FILE_LINES_WARNING} on, split it")
            errors.extend(long_functions(source, name))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
