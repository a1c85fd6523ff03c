"""JSON with comments: what is taken out, what is not, and what that costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.dialect import Format
from bridge.discovery.documents import MalformedError, decode, strip_comments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('// first\n{"a": 1} // last', {"a": 1}),
        ('{"a": /* one */ 1, /* two\nlines */ "b": 2}', {"a": 1, "b": 2}),
        ('{"a": "// no comment", "b": "/* nor */ this", "c": ",]"}', None),
        ('{"a": "quote \\" // still text"}', None),
        ('{"a": [1, 2, ], "b": {"c": 3, }, }', {"a": [1, 2], "b": {"c": 3}}),
        ('{"a": 1, // why\n /* and */ }', {"a": 1}),
        ('["\\\\", ]', ["\\"]),
        ("[1,/**/]", [1]),
    ],
)
def test_comments_and_last_commas_go_and_texts_stay(text: str, value: object) -> None:
    expected = json.loads(text) if value is None else value
    assert decode(text.encode(), "jsonc") == expected


@pytest.mark.parametrize("format", ["json", "json with comments"])
def test_a_client_that_refuses_a_last_comma_is_followed(format: Format) -> None:
    with pytest.raises(MalformedError, match="comma before the closing bracket"):
        decode(b'{"a": 1,}', format)


def test_a_client_that_refuses_comments_is_followed() -> None:
    assert decode(b'{"a": 1 /* x */}', "json with comments") == {"a": 1}
    with pytest.raises(MalformedError, match="JSON has none"):
        decode(b'{"a": 1 /* x */}', "json")


@pytest.mark.parametrize("text", ["[1,,]", "[,,]", '{"a" 1}', "[1] x", '{"a": 1 / 2}', '"open'])
def test_what_no_reader_accepts_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        decode(text.encode(), "jsonc")


def test_places_in_messages_are_those_of_the_reader_s_own_text() -> None:
    with pytest.raises(MalformedError, match="line 3, column 8"):
        decode(b'{ // one\n  /* two */ "a": 1,\n  "b": x}', "jsonc")


def test_a_comment_without_end_is_named_by_its_line() -> None:
    with pytest.raises(MalformedError, match="starts at line 2 does not end"):
        decode(b'{"a": 1}\n/* and then /', "jsonc")
    with pytest.raises(MalformedError):
        strip_comments("/*/", trailing_commas=True)


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
