"""The tie between a list of promises and the tests that hold them, for every such list."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


@cache
def tests_of(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the tests of a file by name."""
    module = ast.parse((REPOSITORY / file).read_text("utf-8"))
    return {
        node.name: node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


def _marks(file: str) -> str:
    """Return the source of what marks a whole file."""
    module = ast.parse((REPOSITORY / file).read_text("utf-8"))
    return "\n".join(
        ast.unparse(node)
        for node in module.body
        if isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)
    )


def assert_held(promise: str, tests: tuple[str, ...], *, other_systems: bool = False) -> None:
    """See that a promise is one sentence, and each of its tests exists and runs.

    Args:
        other_systems: Whether a file may leave its tests out on other systems than Linux.
    """
    assert promise.endswith(".")
    assert promise.count(". ") == 0
    assert tests
    assert len(set(tests)) == len(tests)
    for node_id in tests:
        file, _, name = node_id.partition("::")
        assert name in tests_of(file), node_id
        function = tests_of(file)[name]
        decorators = "\n".join(map(ast.unparse, function.decorator_list))
        marks = _marks(file)
        if other_systems and "sys.platform != 'linux'" in marks:
            marks = ""
        body = ast.unparse(function)
        for word in ("skip", "xfail"):
            assert word not in decorators, node_id
            assert word not in marks, node_id
            assert f"pytest.{word}(" not in body, node_id


def assert_in_both(node_id: str) -> None:
    """See that a test is not one that only `make test-all` runs."""
    file, _, name = node_id.partition("::")
    decorators = "\n".join(map(ast.unparse, tests_of(file)[name].decorator_list))
    assert "mark.full" not in decorators + _marks(file), node_id


def assert_named(directory: str, named: Iterable[str], *, but: str) -> None:
    """See that every test of a directory stands in its list; what ties the two need not."""
    here = {
        f"{directory}/{path.name}::{name}"
        for path in (REPOSITORY / directory).glob("test_*.py")
        if path.name != but
        for name in tests_of(f"{directory}/{path.name}")
    }
    assert here
    assert here <= set(named), here - set(named)
