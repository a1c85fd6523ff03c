"""Fail when a file or a function is too long to be read in one go, or a package over its budget.

The limits are those of the house style: 600 lines a file, 60 lines a function. There is no list of
exceptions. No package of `bridge/` may grow above its budget, which is what it had when it was last
made smaller: lower it with the package. The table has the design's aim beside it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("bridge", "tests", "benchmarks", "scripts", "examples")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

BASE = "(base)"
"""The values, errors and small mechanisms beside the packages: `model`, `errors.py`, ..."""

BUDGETS = {
    "cli": 6_080,
    "server": 3_920,
    "runs": 4_690,
    "sessions": 2_020,
    "plans": 970,
    "commands": 1_450,
    "skills": 2_390,
    "servers": 2_830,
    "callers": 740,
    "discovery": 5_440,
    "upstream": 7_480,
    "catalog": 7_180,
    "sandbox": 16_350,
    "rpc": 1_300,
    "gate": 9_190,
    "store": 2_840,
    "packages": 1_420,
    "render": 1_210,
    "clients": 2_980,
    "settings": 3_640,
    BASE: 2_720,
    "guest": 11_860,
}
"""Most lines of each package of `bridge/`."""

AIMS = {
    "cli": 2_530,
    "server": 2_090,
    "runs": 3_300,
    "sessions": 1_430,
    "plans": 660,
    "commands": 1_320,
    "skills": 770,
    "servers": 1_760,
    "discovery": 3_300,
    "upstream": 4_620,
    "catalog": 4_400,
    "sandbox": 9_350,
    "rpc": 990,
    "gate": 5_500,
    "store": 1_320,
    "packages": 770,
    "render": 935,
    "clients": 1_600,
    "settings": 2_200,
    BASE: 1_540,
    "guest": 7_700,
}
"""The design's figures plus a tenth."""

BRIDGE_AIM = 66_000

COUNTED_AS = {"model": BASE, "artifacts": "store"}
"""Packages that share a budget with another one, of which they become a part."""


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


def lines_by_package() -> dict[str, int]:
    """Return how many lines each package of `bridge/` has."""
    found = dict.fromkeys(BUDGETS, 0)
    for path in (ROOT / "bridge").rglob("*.py"):
        top, *below = path.relative_to(ROOT / "bridge").parts
        name = COUNTED_AS.get(top, top) if below else BASE
        found[name] = found.get(name, 0) + path.read_text(encoding="utf-8").count("\n")
    return found


def over_budget(found: Mapping[str, int]) -> Iterator[str]:
    """Yield a complaint for each package that has more lines than its budget, or has none."""
    for name, lines in found.items():
        budget = BUDGETS.get(name)
        if budget is None:
            yield f"bridge/{name}: {lines:,} lines and no budget; give it one in this script"
        elif lines > budget:
            yield f"bridge/{name}: {lines:,} lines; its budget is {budget:,}"


def table(found: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each package: its lines, its budget, and the design's aim."""
    rows = [(name, lines, BUDGETS.get(name, 0), AIMS.get(name, 0)) for name, lines in found.items()]
    rows.append(("bridge", sum(found.values()), sum(BUDGETS.values()), BRIDGE_AIM))
    yield f"{'package':<12}{'lines':>8}{'budget':>8}{'aim':>8}"
    for name, lines, budget, aim in rows:
        yield f"{name:<12}{lines:>8,}{budget:>8,}{aim:>8,}"


def main() -> int:
    """Check every Python file of the project; return 1 if anything is too long."""
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
            errors.extend(long_functions(source, name))
    found = lines_by_package()
    print("\n".join(table(found)))
    errors.extend(over_budget(found))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
