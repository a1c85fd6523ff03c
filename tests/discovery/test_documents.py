"""Decoding a file, saying what is wrong with it, and what odd texts cost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.dialect import Format
from bridge.discovery.documents import (
    MalformedError,
    decode,
    kind,
    load_yaml,
    size_limit,
    strip_comments,
)


def reason(raw: bytes, format: Format = "json") -> str:
    with pytest.raises(MalformedError) as caught:
        decode(raw, format)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        ("json", '{"a": ' + "9" * 5000 + "}", "unusable number"),
        ("json", "[" * 100_000, "nested too deeply"),
        ("yaml", "[" * 100_000, "nested too deeply"),
        ("yaml", "a:\n" + "".join("  " * n + "- a:\n" for n in range(1, 200)), "too deeply"),
    ],
)
def test_what_is_too_much_is_explained(format: Format, text: str, said: str) -> None:
    assert said in reason(text.encode(), format)


@pytest.mark.parametrize("part", ["a", '""', '"\\""', "'a.b'", "a "])
def test_a_toml_key_of_thousands_of_parts_is_refused_before_it_is_parsed(part: str) -> None:
    """Python's parser takes a minute for a key of 60 kB."""
    key = ".".join([part] * 30_000)
    for text in (f"{key} = 1", f"[{key}]", f"x = {{{key} = 1}}"):
        assert "more than 32 parts" in reason(text.encode(), "toml")
    hosts = ", ".join(['"one.example.com"'] * 99)
    assert decode(f'a.b."c.d" = [{hosts}]\n'.encode(), "toml")


def test_values_are_named_in_json_s_words() -> None:
    values = [None, True, 1, 1.5, "x", [], {}, decode(b"d = 1979-05-27", "toml")["d"]]  # type: ignore[index]  # a table
    assert [kind(value) for value in values] == [
        *("null", "a boolean", "a number", "a number", "a string", "a list", "an object"),
        "a date or time",
    ]


def test_python_decoders_have_smaller_limits_and_bytes_other_than_utf_8_are_named() -> None:
    assert size_limit("yaml") < size_limit("jsonc") < size_limit("json")
    assert "not valid UTF-8 (byte 2)" in reason(b'{"\xff": 1}')
    assert "UTF-16" in reason('{"a": 1}'.encode("utf-16"))


@pytest.mark.parametrize("piece", ['"', "/*", "/* *", "//", ",", '\\"', "/", '"\\', "[,", "a/"])
def test_odd_text_costs_no_more_than_its_length(piece: str) -> None:
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


def test_words_mean_what_they_mean_in_yaml_1_2() -> None:
    """Goose and Continue use YAML 1.2. In 1.1, a server called `off` would be `false`."""
    text = "off: no\nv: [yes, 1, 010, 1:30, 1.5, -7, ~, true, 'x', 2020-01-01, 0x10, null]"
    values = ["yes", 1, "010", "1:30", 1.5, -7, None, True, "x", "2020-01-01", "0x10", None]
    assert load_yaml(text) == {"off": "no", "v": values}
    assert load_yaml("1: a\n~: c\n1.5: d") == {"1": "a", "null": "c", "1.5": "d"}
    assert load_yaml("true: " + "9" * 5000) == {"true": "9" * 5000}
    assert load_yaml("a: &x {k: 1}\n<<: {k: 2}") == {"a": {"k": 1}, "<<": {"k": 2}}
