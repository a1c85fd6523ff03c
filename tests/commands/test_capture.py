"""What is kept of a command's streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.runner import Capture
from bridge.gate.redaction import Redactor

SECRET = "wJalrXUt/nFEMI+K7MDENG"


@given(st.binary(max_size=3000), st.lists(st.integers(0, 700), max_size=20))
def test_no_more_than_the_limit_is_kept_and_the_rest_is_counted(
    data: bytes, sizes: list[int]
) -> None:
    capture = Capture(1000, Redactor())
    rest = data
    for size in sizes:
        capture.feed(rest[:size])
        rest = rest[size:]
    capture.feed(rest)
    capture.finish()
    assert capture.dropped == max(0, len(data) - 1000)
    if not capture.dropped:
        assert capture.text() == data.decode("utf-8", "backslashreplace")


def test_a_cut_stream_shows_its_ends_and_says_what_is_missing() -> None:
    capture = Capture(10, Redactor())
    capture.feed(b"0123456789")
    capture.feed(b"abcdefghij")
    assert capture.text() == "01234\n[... 10 bytes dropped ...]\nfghij"


def test_a_secret_that_the_cut_goes_through_does_not_show_in_part() -> None:
    capture = Capture(40, Redactor({SECRET: "KEY"}))
    capture.feed(b"x" * 10 + SECRET.encode() + b"y" * 100 + SECRET.encode()[:7])
    capture.feed(SECRET.encode()[7:])
    capture.finish()
    assert not any(part in capture.text() for part in (SECRET[:4], SECRET[-4:]))
