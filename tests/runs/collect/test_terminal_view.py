"""What a terminal would show of a program's output."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.runs.collect.collector import terminal_view


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\r 10%|█   |\r100%|████|\n", "100%|████|\n"),
        ("long text\rshort\n", "shorttext\n"),
        ("\r50%\r    \rdone", "done"),
        ("\rbar\r   \r\nnext", "\nnext"),
        ("loading\r\x1b[Kdone\n", "done\n"),
        ("loading\x1b[2K\rdone\n", "done\n"),
        ("ab\bc\n", "ac\n"),
        ("outer 1\n\rinner 1\x1b[A\router 2\n\rinner 2\n", "outer 2\ninner 2\n"),
        ("\x1b[1;31mred\x1b[0m \x1b[38;5;4mblue\x1b[m\n", "red blue\n"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b]0;title\x07\x1b(Btext", "link text"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("x \n" * 81 + "y\n", "x  (81 times)\ny\n"),
        ("x\n" * 1200, "x (1,200 times)\n"),
        (". . .\n" * 9, ". . .\n" * 9),
        ("\n" * 30, "\n" * 30),
        ("a\nb\n" * 30, "a\nb\n" * 30),
        ("xy\n" * 10 + "xyz\n", "xy (10 times)\nxyz\n"),
        ("  indented\t\n", "  indented\t\n"),
        ("\x1b[", "["),
    ],
)
def test_a_text_is_shown_as_a_terminal_shows_it(written: str, shown: str) -> None:
    assert terminal_view(written.encode()).decode() == shown


@given(st.binary(max_size=60) | st.text("\r\n\b\x1b[]A0;Kmx é", max_size=60).map(str.encode))
def test_any_bytes_have_a_view_and_plain_lines_are_their_own(data: bytes) -> None:
    view = terminal_view(data)
    assert not re.search(rb"[\r\x1b\b]", view)
    assert terminal_view(view) == view
    if not re.search(rb"[\r\x1b\b]", data):
        assert view == data


@pytest.mark.parametrize(
    "piece",
    [b"\r", b"xy\r", b"\x1b[", b"\x1b]", b"\x1b[0", b"x\x1b[A\n", b" ", b"\n", b"x", b"a\n"],
)
def test_the_work_grows_with_the_text_alone(piece: bytes) -> None:
    """A hostile program fills all that is held in memory; a quadratic search would take minutes."""
    assert len(terminal_view(piece * (128 * 1024 // len(piece)))) <= 192 * 1024
