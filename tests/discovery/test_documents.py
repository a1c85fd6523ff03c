"""Decoding a file, and saying what is wrong with it."""

from __future__ import annotations

import pytest

from bridge.discovery.dialect import Format
from bridge.discovery.documents import MalformedError, decode, kind, size_limit


def reason(raw: bytes, format: Format = "json") -> str:
    with pytest.raises(MalformedError) as caught:
        decode(raw, format)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": ' + "9" * 5000 + "}", ("unusable number",)),
        ("[" * 100_000, ("nested too deeply",)),
    ],
)
def test_bad_json_is_explained(text: str, said: tuple[str, ...]) -> None:
    message = reason(text.encode())
    for part in said:
        assert part in message


@pytest.mark.parametrize("part", ["a", '""', '"\\""', "'a.b'", "a "])
def test_a_toml_key_of_thousands_of_parts_is_refused_before_it_is_parsed(part: str) -> None:
    """Python's parser takes a minute for one of 60 kB."""
    key = ".".join([part] * 30_000)
    for text in (f"{key} = 1", f"[{key}]", f"x = {{{key} = 1}}"):
        assert "more than 32 parts" in reason(text.encode(), "toml")
    hosts = ", ".join(['"one.example.com"'] * 99)
    assert decode(f'a.b."c.d" = [{hosts}]\n'.encode(), "toml")


def test_bytes_that_are_not_utf_8_are_named() -> None:
    assert "not valid UTF-8 (byte 2)" in reason(b'{"\xff": 1}')
    assert "UTF-16" in reason('{"a": 1}'.encode("utf-16"))


def test_values_are_named_in_json_s_words() -> None:
    values = [None, True, 1, 1.5, "x", [], {}, decode(b"d = 1979-05-27", "toml")["d"]]  # type: ignore[index]  # a table
    assert [kind(value) for value in values] == [
        *("null", "a boolean", "a number", "a number", "a string", "a list", "an object"),
        "a date or time",
    ]


def test_what_is_read_by_python_code_is_read_in_part_only_when_small() -> None:
    """A file that comes with a project may be as large as its author likes."""
    assert size_limit("yaml") < size_limit("jsonc") < size_limit("json")
