"""The ledger and the tests it names agree, in both directions."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.older_bridge.ledger import HERE, LEDGER, Entry

REPOSITORY = Path(__file__).parents[2]
FAULTS = 20


@cache
def _tests(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
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


def test_every_fault_has_an_entry_in_order() -> None:
    """Twenty, none twice."""
    assert [entry.number for entry in LEDGER] == list(range(1, FAULTS + 1))


@pytest.mark.parametrize("entry", LEDGER, ids=lambda entry: f"fault-{entry.number}")
def test_an_entry_names_tests_that_exist_and_run(entry: Entry) -> None:
    """By file and function; none of them is skipped or expected to fail."""
    assert entry.promise.endswith(".")
    assert entry.promise.count(". ") == 0
    assert entry.tests
    assert len(set(entry.tests)) == len(entry.tests)
    for node_id in entry.tests:
        file, _, name = node_id.partition("::")
        assert name in _tests(file), node_id
        function = _tests(file)[name]
        decorators = "\n".join(map(ast.unparse, function.decorator_list))
        body = ast.unparse(function)
        for word in ("skip", "xfail"):
            assert word not in decorators, node_id
            assert word not in _marks(file), node_id
            assert f"pytest.{word}(" not in body, node_id


def test_every_test_here_is_in_the_ledger() -> None:
    """A test that holds no promise belongs elsewhere."""
    named = {node_id for entry in LEDGER for node_id in entry.tests}
    here = {
        f"{HERE}/{path.name}::{name}"
        for path in (REPOSITORY / HERE).glob("test_*.py")
        if path.name != Path(__file__).name
        for name in _tests(f"{HERE}/{path.name}")
    }
    assert here
    assert here <= named
