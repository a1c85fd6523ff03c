"""Command lines: what a shell's quoting means, and nothing else of a shell's."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.line import parse_line
from bridge.errors import InvalidRequestError

_WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1)


@given(_WORDS)
def test_what_shlex_joins_is_parsed_back_to_the_same_words(words: list[str]) -> None:
    assert parse_line(shlex.join(words)) == (tuple(words),)


@given(st.lists(_WORDS, min_size=1, max_size=4))
def test_an_unquoted_bar_parts_stages_and_a_quoted_one_does_not(stages: list[list[str]]) -> None:
    line = " | ".join(shlex.join(words) for words in stages)
    assert parse_line(line) == tuple(map(tuple, stages))


@given(st.text(st.sampled_from("ab '\"\\|;&$`<>()*?[]{}#~\n\t")))
def test_no_line_does_anything_but_parse_or_be_refused(line: str) -> None:
    """There is no third outcome, and a line that parses agrees with the standard library."""
    try:
        stages = parse_line(line)
    except InvalidRequestError:
        return
    assert all(stages)
    if "|" not in line and "\\\n" not in line:
        assert [word for stage in stages for word in stage] == shlex.split(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a'b'\"c\"\\d", ["abcd"]),
        ("a '' \"\"", ["a", "", ""]),
        (r'"a\"b\\c\d\$e"', [r'a"b\c\d$e']),
        ("a\\\n b", ["a", "b"]),
        ("'$HOME' '`x`' '*' ';' '>' '{a,b}'", ["$HOME", "`x`", "*", ";", ">", "{a,b}"]),
        ('"; && > * costs 5$ $"', ["; && > * costs 5$ $"]),
        ("a#b x=y HEAD~1 a!b", ["a#b", "x=y", "HEAD~1", "a!b"]),
        ("\n  a b \n", ["a", "b"]),
    ],
)
def test_quotes_and_backslashes_mean_what_they_mean_in_sh(line: str, words: list[str]) -> None:
    assert parse_line(line) == (tuple(words),)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a; b", "one call for each command"),
        ("a && b", "one call for each command"),
        ("a || b", "one call for each command"),
        ("a & b", "one call for each command"),
        ("a |& b", "stderr is returned"),
        ("a > f", "writes to a file"),
        ("a < f", "`stdin`"),
        ("a 2>&1", "writes to a file"),
        ("a $(b)", "expands a variable or a command"),
        ("a `b`", "substitutes"),
        ("a $HOME", "Write the value itself"),
        ('a "$HOME"', "single quotes"),
        ('a "${HOME}"', "single quotes"),
        ('a "`b`"', "single quotes"),
        ("a *.txt", "Name each file"),
        ("a ?", "Name each file"),
        ("a [x]", "Name each file"),
        ("a {x,y}", "Write each word"),
        ("a\nb", "line break"),
        ("a\r\nb", "on one line"),
        ("(a)", "subshell"),
        ("a # b", "comment"),
        ("a 'b", "single quote is opened"),
        ('a "b', "double quote is opened"),
        ("a \\", "backslash"),
        ("", "empty"),
        ("  ", "empty"),
        ("a |", "one side of a |"),
        ("| a", "one side of a |"),
        ("a | | b", "one side of a |"),
    ],
)
def test_what_only_a_shell_does_is_refused_with_what_to_do_instead(line: str, told: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_line(line)
    assert told in str(refused.value)
