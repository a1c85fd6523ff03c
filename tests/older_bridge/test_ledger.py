"""The ledger and the tests it names agree, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger import assert_held, assert_named
from tests.older_bridge.ledger import HERE, LEDGER, Entry

FAULTS = 20


def test_every_fault_has_an_entry_in_order() -> None:
    """Twenty, none twice."""
    assert [entry.number for entry in LEDGER] == list(range(1, FAULTS + 1))


@pytest.mark.parametrize("entry", LEDGER, ids=lambda entry: f"fault-{entry.number}")
def test_an_entry_names_tests_that_exist_and_run(entry: Entry) -> None:
    """By file and function; none of them is skipped or expected to fail."""
    assert_held(entry.promise, entry.tests)


def test_every_test_here_is_in_the_ledger() -> None:
    """A test that holds no promise belongs elsewhere."""
    assert_named(HERE, (t for entry in LEDGER for t in entry.tests), but=Path(__file__).name)
