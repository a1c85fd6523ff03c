from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import RunResult
from bridge.render.structured import MAX_DEPTH, TOO_DEEP, stream_lines, to_json, to_structured

ANY_TEXT = st.text(st.characters(codec=None))


def nest(levels: int) -> Any:
    value: Any = "core"
    for level in range(levels):
        value = {"a": value, "b": level} if level % 2 else [value, level]
    return value


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\n\na", ["", "", "a"]),
        ("()\n", ["()"]),
        ("a\r\nb\rc\x0b\x85\u2028d", ["a\r", "b\rc\x0b\x85\u2028d"]),
    ],
)
def test_a_stream_is_parted_at_newlines_only(text: str, lines: list[str]) -> None:
    assert stream_lines(text) == lines


def stream_text(lines: list[str], *, final_newline: bool) -> str:
    return "\n".join(lines) + ("\n" if lines and final_newline else "")


@given(stdout=st.text(), stderr=st.text())
def test_structured_content_gives_back_both_streams(stdout: str, stderr: str) -> None:
    made = to_structured(
        RunResult(run_id="r", status="success", summary="s", stdout=stdout, stderr=stderr)
    )
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        ended = name not in made.get("noFinalNewline", [])
        assert stream_text(made.get(name, []), final_newline=ended) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ((1, 2), [1, 2]),
        ({2: "a", None: "b", True: "c"}, {"2": "a", "null": "b", "true": "c"}),
        ({2.5: 1, float("inf"): 2}, {"2.5": 1, "inf": 2}),
        (b"x", "b'x'"),
        (2**70, 2**70),
    ],
)
def test_what_is_not_quite_json_is_made_so(value: Any, expected: Any) -> None:
    assert to_json(value) == expected


def test_digits_past_the_interpreters_limit_and_keys_of_lone_surrogates_are_told_apart() -> None:
    assert to_json(10**5_000) == hex(10**5_000)
    odd = {chr(0xD800 + number): number for number in (0, 1)}
    assert to_json(odd) == {"\\ud800": 0, "\\ud801": 1}


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 300])
def test_deep_nesting_becomes_a_string_of_json_and_loses_nothing(levels: int) -> None:
    value = to_json(nest(levels))
    depth = 0
    probe = value
    while not isinstance(probe, str):
        probe = probe["a"] if isinstance(probe, dict) else probe[0]
        depth += 1
    assert depth == min(levels, MAX_DEPTH)
    rest = levels - MAX_DEPTH
    assert probe == "core" if rest <= 0 else json.loads(probe) == nest(rest)
    assert TOO_DEEP in json.dumps(to_json(nest(50_000)))


@given(
    value=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.binary()),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.one_of(ANY_TEXT, st.integers()), inner)
        ),
    )
)
def test_any_value_becomes_strict_json(value: Any) -> None:
    text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)
    json.loads(text.encode())
