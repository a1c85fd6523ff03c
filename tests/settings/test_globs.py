"""Globs: what they match, and that a hostile text cannot make them slow."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.settings.policy import covers, literal, matcher

_TEXTS = st.text("ab*?\\\n[", max_size=10)
_GLOBS = st.lists(st.sampled_from(["a", "b", "*", "?", "\\*", "\\?", "\\\\", "\n", "["])).filter(
    bool
)


def _plainly(glob: list[str], text: str) -> bool:
    if not glob:
        return not text
    first, rest = glob[0], glob[1:]
    if first == "*":
        return any(_plainly(rest, text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    return (first == "?" or first[-1] == text[0]) and _plainly(rest, text[1:])


@given(_GLOBS.filter(lambda parts: len(parts) < 9), _TEXTS)
@example(["a", "?", "*", "?", "a"], "aba")
@example(["a", "b", "*", "b", "a"], "aba")
@example(["*", "a", "?", "*"], "a")
def test_a_glob_matches_what_trying_everything_finds(parts: list[str], text: str) -> None:
    assert matcher("".join(parts))(text) is _plainly(parts, text)


@given(_TEXTS.filter(bool), _TEXTS)
def test_a_literal_matches_its_own_text_alone(text: str, other: str) -> None:
    matches = matcher(literal(text))
    assert matches(text)
    assert matches(other) is (other == text)


@given(
    _GLOBS.filter(lambda parts: len(parts) < 6), _GLOBS.filter(lambda parts: len(parts) < 6), _TEXTS
)
def test_what_covers_another_matches_all_that_it_matches(
    first: list[str], second: list[str], text: str
) -> None:
    if covers("".join(first), "".join(second)) and _plainly(second, text):
        assert _plainly(first, text)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("*", "github", True),
        ("git*", "github*", True),
        ("git*", "git?ub", True),
        ("github", "git*", False),
        ("g?t", "g*t", False),
        ("a\\*", "a\\*", True),
    ],
)
def test_covering_is_seen_where_it_matters(first: str, second: str, *, expected: bool) -> None:
    assert covers(first, second) is expected


def test_brackets_case_and_accents_mean_themselves() -> None:
    assert matcher("[bug] *")("[bug] crash")
    assert not matcher("[ab]")("a")
    assert not matcher("Main")("main")
    assert not matcher("caf\u00e9")("cafe\u0301")


def test_one_of_several_globs_is_enough() -> None:
    matches = matcher("push", "git_*")
    assert [matches(name) for name in ("push", "git_push", "pull")] == [True, True, False]


@pytest.mark.parametrize(
    ("glob", "problem"), [("", "empty"), ("a\\b", "backslash before"), ("a\\", "backslash before")]
)
def test_what_is_no_glob_says_why(glob: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        matcher(glob)


def test_a_glob_of_many_wildcards_meets_a_long_text_that_almost_matches() -> None:
    assert not matcher("*a" * 40 + "*b")("a" * 20_000)
    assert not matcher("*?a" * 40 + "*b")("a" * 20_000)
