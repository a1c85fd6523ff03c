"""Fail when a file or a function is too long, or when the project grows past a ceiling.

A file has at most 600 lines and a function at most 60, without exceptions. Five totals have a
ceiling: the lines of `bridge/` and of `tests/`, and in `bridge/` the named limits, the exception
classes and the class names that occur twice. A ceiling only falls. It rises only together with a
new row in `GRANTS`, and by no more than that row.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("bridge", "tests", "benchmarks", "scripts", "examples")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

CEILINGS = {"bridge": 81_602, "tests": 85_238, "limits": 247, "exceptions": 45, "twins": 3}

GRANTS = {
    "each launcher starts its servers": {"bridge": 300, "tests": 600},
    "protections fit real things": {"bridge": 300, "tests": 1_000},
    "results lose nothing that a server sent": {"bridge": 200, "tests": 900},
    "programs work at the first try": {"bridge": 0, "tests": 1_000},
    "packages, charts, tables and files": {"bridge": 500, "tests": 900},
    "shared resources have owners: places, counters, admission": {"bridge": 600, "tests": 800},
    "nothing stays stuck": {"bridge": 300, "tests": 1_000},
    "shared resources have owners: acts that carry information": {"bridge": 300, "tests": 400},
    "configurations are read as their clients read them": {"bridge": 200, "tests": 600},
    "what a person reads, decides and sees": {"bridge": 400, "tests": 800},
    "several bridges and many pods lose nothing": {"bridge": 500, "tests": 1_200},
    "one background bridge": {"bridge": 1_219, "tests": 1_408},
    "one background bridge, repaired after a review": {"bridge": 81, "tests": 92},
}
"""What a feature may add to each ceiling."""

LIMIT = re.compile(r"_?(?:(?:MAX|MIN|MOST|LEAST)_\w+|\w+_SECONDS)")
EXCEPTION = re.compile(r"\w*(?:Error|Exception|Warning)|(?:errors\.)?\w+Error")


def python_files(directory: str) -> list[Path]:
    """Return the project's own Python files below a directory."""
    files = sorted((ROOT / directory).rglob("*.py"))
    return [path for path in files if "node_modules" not in path.parts]


def long_functions(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield a complaint for each function of a module that is too long."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # Decorators are not counted: a table of test cases is data.
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            limit = f"the limit is {MAX_FUNCTION_LINES}"
            yield f"{name}:{node.lineno}: function {node.name} has {length} lines; {limit}"


def count_limits(tree: ast.Module) -> int:
    """Return how many named limits a module defines: `MAX_BYTES`, `STOP_SECONDS`."""
    count = 0
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        count += sum(isinstance(t, ast.Name) and bool(LIMIT.fullmatch(t.id)) for t in targets)
    return count


def count_exceptions(tree: ast.Module) -> int:
    """Return how many exception classes a module defines."""
    return sum(
        isinstance(node, ast.ClassDef)
        and any(EXCEPTION.fullmatch(ast.unparse(base)) for base in node.bases)
        for node in ast.walk(tree)
    )


def totals() -> dict[str, int]:
    """Return the present value of each total that has a ceiling."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in python_files("bridge")]
    lines = {
        directory: sum(path.read_bytes().count(b"\n") for path in python_files(directory))
        for directory in ("bridge", "tests")
    }
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        **lines,
        "limits": sum(map(count_limits, trees)),
        "exceptions": sum(map(count_exceptions, trees)),
        "twins": sum(count > 1 for count in Counter(classes).values()),
    }


def raised(
    old: tuple[Mapping[str, int], Mapping[str, Mapping[str, int]]],
    new: tuple[Mapping[str, int], Mapping[str, Mapping[str, int]]],
) -> Iterator[str]:
    """Yield a complaint for each ceiling that rose by more than new grants allow.

    Args:
        old: The ceilings and the grants of the previous version of this file.
        new: Those of the present version.
    """
    granted = [row for name, row in new[1].items() if name not in old[1]]
    for name, ceiling in new[0].items():
        allowed = old[0].get(name, ceiling) + sum(row.get(name, 0) for row in granted)
        if ceiling > allowed:
            yield f"the ceiling of {name} rose to {ceiling:,}; new grants allow {allowed:,}"


def tables(source: str) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return the ceilings and the grants in a version of this file; empty if it has none."""
    values = {}
    for node in ast.parse(source).body:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and name in ("CEILINGS", "GRANTS"):
            values[name] = ast.literal_eval(node.value)
    return values.get("CEILINGS", {}), values.get("GRANTS", {})


def previous_version(file: str) -> str:
    """Return a script as of the last commit in which it differed; empty without such a commit."""
    name = Path(file).resolve().relative_to(ROOT).as_posix()
    present = Path(file).read_text(encoding="utf-8")
    git = ["git", "-C", str(ROOT)]
    log = [*git, "log", "-n", "2", "--first-parent", "--format=%H", "--", name]
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    for commit in commits:
        show = [*git, "show", f"{commit}:{name}"]
        source = subprocess.run(show, capture_output=True, text=True, check=False).stdout
        if source != present:
            return source
    return ""


def main() -> int:
    """Check every Python file of the project; return 1 if anything is too large."""
    errors: list[str] = []
    for directory in DIRECTORIES:
        for path in python_files(directory):
            name = str(path.relative_to(ROOT))
            source = path.read_text(encoding="utf-8")
            lines = source.count("\n")
            if lines > MAX_FILE_LINES:
                errors.append(f"{name}: {lines} lines; the limit is {MAX_FILE_LINES}")
            errors.extend(long_functions(ast.parse(source, name), name))
    for name, total in totals().items():
        print(f"{name:<12}{total:>9,} of {CEILINGS[name]:,}")
        if total > CEILINGS[name]:
            errors.append(f"{name}: {total:,}; the ceiling is {CEILINGS[name]:,}")
    errors.extend(raised(tables(previous_version(__file__)), (CEILINGS, GRANTS)))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
