"""What is written of what a run had read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import Provenance
from bridge.model.kept import MAX_DOCUMENT

NAMES = st.frozensets(st.text(max_size=8), max_size=5)
MADE = st.builds(
    Provenance,
    run_id=st.sampled_from(["", "0123456789abcdef" * 2, "r-1_b"]),
    labels=NAMES,
    servers=NAMES,
    anything=st.booleans(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(made=MADE)
def test_what_is_written_is_read_again_or_counts_as_more(made: Provenance) -> None:
    found = Provenance.of(json.loads(json.dumps(made.document())))
    assert found is not None
    assert found.run_id == made.run_id
    assert found == made or found.anything


def test_nothing_written_says_nothing() -> None:
    assert Provenance.of(None) is None


@given(
    document=JSON.filter(lambda value: value is not None)
    | st.fixed_dictionaries({}, optional={"run": JSON, "labels": JSON, "anything": JSON})
)
def test_of_what_no_run_wrote_anything_may_have_been_read(document: Any) -> None:
    found = Provenance.of(document)
    assert found is not None
    assert found.anything


@pytest.mark.parametrize(
    "change",
    [
        {"labels": "private-data"},
        {"labels": [1]},
        {"labels": None},
        {"servers": {}},
        {"anything": None},
        {"anything": 0},
    ],
)
def test_a_document_somebody_changed_counts_as_the_worst(change: dict[str, Any]) -> None:
    document = Provenance(run_id="r", labels=frozenset({"x"})).document()
    assert Provenance.of(document) == Provenance(run_id="r", labels=frozenset({"x"}))
    found = Provenance.of({**document, **change})
    assert found is not None
    assert found.anything


def test_a_run_is_named_only_as_runs_are() -> None:
    for name in ("a b", "x\n", "", 5, "r" * 41, "run\u202e"):
        found = Provenance.of({**Provenance(run_id="r").document(), "run": name})
        assert found == Provenance()


def test_more_than_there_is_room_for_is_anything() -> None:
    many = Provenance(run_id="r", servers=frozenset(f"{n:0100}" for n in range(1000)))
    assert len(json.dumps(many.document())) < MAX_DOCUMENT
    assert Provenance.of(many.document()) == Provenance(run_id="r", anything=True)


@given(one=MADE, other=MADE)
def test_what_comes_from_two_has_what_either_had(one: Provenance, other: Provenance) -> None:
    both = one.together(other)
    assert both.labels == one.labels | other.labels
    assert both.servers == one.servers | other.servers
    assert both.anything == (one.anything or other.anything)
    assert one.together(None) == one
