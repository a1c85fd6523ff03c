"""How the value of a program's last expression is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.render.text import value_text
from bridge.settings import OutputMode

MODES: tuple[OutputMode, ...] = ("compact", "toon", "json", "auto")
ROWS = [{"name": "ann", "age": 31}, {"name": "ben", "age": 27}, {"name": "eve", "age": 45}]
NESTED = {"server": {"host": "localhost", "port": 8080, "tls": {"cert": "/etc/a", "key": "/b"}}}
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), ("a", '"a"'), ("a\nb", "a\nb"), (42, "42"), ([], "[]")],
)
@pytest.mark.parametrize("mode", ["compact", "auto"])
def test_a_value_is_compact_json_or_a_text_of_lines(
    value: Any, text: str, mode: OutputMode
) -> None:
    assert value_text(value, mode) == text


def test_json_is_json_also_of_a_text_of_lines() -> None:
    assert value_text("a\nb", "json") == r'"a\nb"'


def test_auto_writes_tables_as_toon() -> None:
    assert value_text(ROWS, "auto") == "[3]{name,age}:\n  ann,31\n  ben,27\n  eve,45"


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [["words", 132], ["tool", 77], ["server", 60]],
        ["Work of Eve", "Work of Ada", "Fix the bug, now"],
        {"open": [1, 2, 3, 4, 5], "closed": [6, 7, 8]},
        NESTED,
    ],
)
def test_auto_writes_what_costs_more_as_toon_as_json(value: Any) -> None:
    assert value_text(value, "auto") == value_text(value, "json")


def test_toon_is_toon_whatever_it_costs() -> None:
    assert value_text(NESTED, "toon").startswith("server:\n  host: localhost\n")


@pytest.mark.parametrize("mode", MODES)
def test_values_beyond_what_formats_hold_are_written(mode: OutputMode) -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = [deep]
    assert "end" in value_text(deep, mode)
    assert r"\ud800" in value_text(["\ud800"], mode)


@pytest.mark.parametrize("mode", MODES)
@given(value=ANY_VALUE)
def test_every_value_has_a_text(mode: OutputMode, value: Any) -> None:
    value_text(value, mode).encode()
