"""Files of variables."""

from __future__ import annotations

import pytest

from bridge.discovery.documents import parse_env_file


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("  export A = two words ", "two words"),
        ("A=x # comment", "x"),
        ("A=x#y", "x#y"),
        ("A='single # \\n $B'", "single # \\n $B"),
        ('A="double # \\n \\"quoted\\" $B" # comment', 'double # \n "quoted" $B'),
        ("A=", ""),
        ("A=a=b", "a=b"),
        ("A='open", "'open"),
        ("A=old\nA=new", "new"),
    ],
)
def test_values_are_read_as_shells_write_them(line: str, value: str) -> None:
    assert parse_env_file(line) == {"A": value}


def test_lines_that_set_nothing_are_passed_over() -> None:
    assert parse_env_file("# A=1\n\n=x\n1A=x\nA B=x\nnothing") == {}
