"""JSON with comments: what is taken out, what is not, and what that costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.documents import MalformedError, strip_comments


@pytest.mark.parametrize("piece", ['"', "/*", "/* *", "//", ",", '\\"', "/", '"\\', "[,", "a/"])
def test_odd_text_costs_no_more_than_its_length(piece: str) -> None:
    """It would not end if a pattern gave back what it took."""
    try:
        strip_comments(piece * 100_000, trailing_commas=True)
    except MalformedError:
        assert "/*" in piece


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(value=VALUES, indent=st.sampled_from([None, 1]), commas=st.booleans())
def test_plain_json_is_left_alone(value: object, indent: int | None, commas: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert strip_comments(text, trailing_commas=commas) == text
