"""What is kept of a stream."""

from __future__ import annotations

import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from bridge.command.capture import Capture, Redactor

SECRET = "wJalrXUt/nFEMI+K7MDENG"


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(
    st.lists(st.sampled_from([SECRET, SECRET[:7], "abc", "w", "\n"])),
    st.lists(st.integers(0, 9), max_size=200),
)
def test_a_secret_is_found_however_a_stream_is_cut(parts: list[str], sizes: list[int]) -> None:
    """And nothing else is changed."""
    text = "".join(parts)
    redactor = Redactor([SECRET])
    out = b"".join(map(redactor.feed, _cut(text.encode(), sizes))) + redactor.finish()
    assert out.decode() == text.replace(SECRET, "[redacted]")


@given(st.binary(max_size=3000), st.lists(st.integers(0, 700), max_size=20))
def test_no_more_than_the_limit_is_kept_and_the_rest_is_counted(
    data: bytes, sizes: list[int]
) -> None:
    """Head and tail are the stream's own."""
    capture = Capture(1000, Redactor([]))
    for piece in _cut(data, sizes):
        capture.feed(piece)
    capture.finish()
    assert capture.dropped == max(0, len(data) - 1000)
    if not capture.dropped:
        assert capture.text() == data.decode("utf-8", "backslashreplace")


def test_a_cut_stream_shows_its_ends_and_says_what_is_missing() -> None:
    """A model sees that it does not see all."""
    capture = Capture(10, Redactor([]))
    capture.feed(b"0123456789")
    capture.feed(b"abcdefghij")
    assert capture.text() == "01234\n[... 10 bytes dropped ...]\nfghij"


def test_a_secret_that_the_cut_goes_through_does_not_show_in_part() -> None:
    """It is taken out before anything is dropped."""
    capture = Capture(40, Redactor([SECRET]))
    capture.feed(b"x" * 10 + SECRET.encode() + b"y" * 100 + SECRET.encode())
    capture.finish()
    assert not any(part in capture.text() for part in (SECRET[:4], SECRET[-4:]))


def test_a_secret_is_found_in_the_spellings_it_takes_in_json_and_urls() -> None:
    """A line of a long one as well."""
    odd = 'pass"word\\1'
    redactor = Redactor([odd, SECRET, "first line of a key\nsecond line of a key"])
    text = f"{json.dumps(odd)} {quote(SECRET, safe='')} second line of a key"
    assert redactor.text(text) == '"[redacted]" [redacted] [redacted]'


@given(st.lists(st.integers(0, 9), max_size=60))
def test_secrets_that_begin_or_overlap_each_other_leave_no_rest(sizes: list[int]) -> None:
    """Whichever is seen first, wherever the stream is cut."""
    redactor = Redactor(["hunter2", "hunter2-production", "duction-and-more"])
    text = "a hunter2 b hunter2-production c hunter2-production-and-more hunter"
    out = b"".join(map(redactor.feed, _cut(text.encode(), sizes))) + redactor.finish()
    assert out.decode() == "a [redacted] b [redacted] c [redacted] hunter"
    assert redactor.text(text) == "a [redacted] b [redacted] c [redacted] hunter"


def test_what_repeats_itself_is_replaced_and_not_gathered() -> None:
    """However long it goes on."""
    redactor = Redactor(["aaaa"])
    out = [redactor.feed(b"aa") for _ in range(1000)]
    assert b"".join(out) + redactor.finish() == b"[redacted]"
    assert sum(map(len, out)) == len(b"[redacted]")


def test_a_secret_that_is_no_text_is_kept_out_as_well() -> None:
    """A variable can hold any bytes."""
    redactor = Redactor([b"\xffnot-utf-8".decode("utf-8", "surrogateescape")])
    assert redactor.feed(b"<\xffnot-utf-8>") + redactor.finish() == b"<[redacted]>"
