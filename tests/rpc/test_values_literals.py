"""Python literals, as servers answer with them, become what they stand for or stay text."""

from __future__ import annotations

import ast
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol.results import MAX_PARSED_VALUES, parse_text


def parsed(text: str) -> Any:
    """Return what a program gets for a tool's text."""
    return parse_text(text, json.loads)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(st.lists(values) | st.dictionaries(st.text(st.characters(codec="utf-8")), values))
def test_what_python_writes_is_read_as_it_was(value: Any) -> None:
    assert parsed(repr(value)) == json.loads(json.dumps(value))


@given(st.text(alphabet="[]{}(),:'\"\\ \nxuUNtrueFalsone01.-+_#", max_size=60))
def test_what_is_read_is_what_python_reads(text: str) -> None:
    text = f"[{text}]"
    found = parsed(text)
    if not isinstance(found, str):
        try:
            assert found == json.loads(text)
        except ValueError:
            assert found == json.loads(json.dumps(ast.literal_eval(text)))


def test_a_row_of_a_database_is_a_row() -> None:
    assert parsed("[{'a': 1, 'b': \"it's\", 'c': None}]") == [{"a": 1, "b": "it's", "c": None}]


@pytest.mark.parametrize(
    "text",
    [
        "[datetime.date(2026, 1, 2)]",
        "[Link](https://example.org)",
        "[see 'this']",
        "[(1), (2)]",
        "[(1, 'a')]",
        "{1: 'a'}",
        "{'a'}",
        "[b'x', nan]",
        "['a",
        "['\\N{BULLET}']",
        "['a' 'b']",
        r"['\U00000022, \U00000022']",
        "[" * 100_000 + "'",
        "[" + "'a'," * MAX_PARSED_VALUES + "'a']",
    ],
)
def test_what_is_no_plain_literal_stays_text(text: str) -> None:
    assert parsed(text) == text


def test_a_large_literal_takes_a_few_times_its_size() -> None:
    text = repr([{"id": number, "name": "a row's name"} for number in range(20_000)])
    tracemalloc.start()
    try:
        assert len(parsed(text)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 15 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["''", "\\n"])
def test_a_text_of_quotes_or_escapes_takes_no_multiple_of_its_size(part: str) -> None:
    """They cost a hundred times what they are, so what has very many stays text."""
    text = f"['{part * (4 * MAX_PARSED_VALUES + 1)}']"
    tracemalloc.start()
    try:
        assert parsed(text) == text
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()
