"""The guarantees and the tests they name agree, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger import assert_held, assert_in_both, assert_named
from tests.security.guarantee import Guarantee
from tests.security.guarantees import ABSENT, ATTACKS, BROKEN, GUARANTEES, HERE

HELPFUL = {f"{BROKEN}::test_one_layer_less_is_noticed"}
"""What holds no promise by itself, since it may have to be skipped on a host without a network."""


def test_every_attack_is_answered_by_one_guarantee() -> None:
    """All 42, none left out and none twice."""
    answered = [number for guarantee in GUARANTEES for number in guarantee.attacks]
    assert sorted(answered) == list(range(1, ATTACKS + 1))
    assert len({guarantee.id for guarantee in GUARANTEES}) == len(GUARANTEES)


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.id)
def test_a_guarantee_names_tests_that_exist_and_run(guarantee: Guarantee) -> None:
    """By file and function; none is skipped on Linux or expected to fail.

    The first runs in `make test` on every engine, see `tests/matrix.py`; all in `make test-all`.
    """
    assert_held(guarantee.promise, guarantee.tests, other_systems=True)
    assert_in_both(guarantee.tests[0])
    absent = {node_id.partition("::")[0] for node_id in guarantee.tests} == {ABSENT}
    assert bool(guarantee.not_applicable) == absent


def test_every_test_here_holds_a_guarantee() -> None:
    """A test that holds no promise belongs elsewhere."""
    named = {node_id for guarantee in GUARANTEES for node_id in guarantee.tests}
    assert_named(HERE, named | HELPFUL, but=Path(__file__).name)
