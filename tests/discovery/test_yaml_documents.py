"""YAML: what words mean, and that no text is larger when read than it looks."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.documents import (
    MalformedError,
    decode,
    load_yaml,
)


def test_words_mean_what_they_mean_in_yaml_1_2() -> None:
    """Goose and Continue read their files so; under 1.1 a server called `off` would be `false`."""
    text = "off: no\nv: [yes, 1, 010, 1:30, 1.5, -7, ~, true, 'x', 2020-01-01, 0x10, null]"
    values = ["yes", 1, "010", "1:30", 1.5, -7, None, True, "x", "2020-01-01", "0x10", None]
    assert load_yaml(text) == {"off": "no", "v": values}


def test_keys_are_text() -> None:
    assert load_yaml("1: a\n~: c\n1.5: d") == {"1": "a", "null": "c", "1.5": "d"}
    assert load_yaml("true: b") == {"true": "b"}


def test_nothing_is_merged() -> None:
    assert load_yaml("a: &x {k: 1}\n<<: {k: 2}") == {"a": {"k": 1}, "<<": {"k": 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("a:\n" + "".join("  " * n + "- a:\n" for n in range(1, 200)), "nested too deeply"),
    ],
)
def test_what_is_too_much_or_no_yaml_is_refused_before_it_is_built(text: str, said: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(text.encode(), "yaml")
    assert said in str(caught.value)


def test_a_number_of_any_length_is_text() -> None:
    assert load_yaml("a: " + "9" * 5000) == {"a": "9" * 5000}


@settings(deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!?|>'\"#%@,\n ~1.", max_size=80))
def test_no_text_makes_decoding_fail_otherwise(text: str) -> None:
    with suppress(MalformedError):
        decode(text.encode(), "yaml")
