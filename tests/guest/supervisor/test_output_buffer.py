"""What is kept of a stream: both ends, whole characters, and an honest count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol.wire import Output
from bridge.guest.supervisor.relay import PIECE_BYTES, TAIL_BYTES, Capture


def kept(limit: int, portions: list[bytes]) -> tuple[str, int]:
    capture = Capture("stdout", limit)
    data = b"".join(capture.feed(portion) for portion in portions)
    frames = capture.finish()
    data += b"".join(f.data for f in frames)
    return data.decode("utf-8", "surrogateescape"), sum(f.skipped for f in frames)


def test_the_first_half_is_sent_at_once_and_the_last_is_held_back() -> None:
    capture = Capture("stderr", 10)
    assert capture.feed(b"abc") == b"abc"
    assert capture.feed(b"defgh") == b"de"
    assert capture.feed(b"ijklmnop") == b""
    assert capture.finish() == [Output("stderr", b"lmnop", skipped=6)]


def test_a_character_split_between_portions_is_one_character() -> None:
    capture = Capture("stdout", 100)
    assert capture.feed("é".encode()[:1]) == b""
    assert capture.feed("é".encode()[1:]) == "é".encode()


def test_long_output_is_cut_into_frames() -> None:
    capture = Capture("stdout", 10 * PIECE_BYTES)
    capture.feed(b"x" * 10 * PIECE_BYTES)
    assert [len(frame.data) for frame in capture.finish()] == [PIECE_BYTES] * 2


def test_of_a_long_stream_little_is_held_back() -> None:
    capture = Capture("stdout", 100 * TAIL_BYTES)
    assert len(capture.feed(b"x" * 200 * TAIL_BYTES)) == 99 * TAIL_BYTES
    assert sum(len(frame.data) for frame in capture.finish()) == TAIL_BYTES


@given(
    st.integers(min_value=0, max_value=60),
    st.lists(st.text(alphabet="aé€😀", max_size=8).map(str.encode), max_size=20),
)
def test_what_is_kept_and_what_is_dropped_add_up(limit: int, portions: list[bytes]) -> None:
    text, dropped = kept(limit, portions)
    whole = b"".join(portions)
    assert len(text.encode()) + dropped == len(whole)
    assert len(text.encode()) <= limit
    if dropped == 0:
        assert text == whole.decode()
    else:
        assert "\ufffd" not in text


@given(st.integers(min_value=0, max_value=60), st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_survived(limit: int, portions: list[bytes]) -> None:
    text, dropped = kept(limit, portions)
    whole = b"".join(portions)
    if dropped == 0 and len(whole) <= limit:
        assert text.encode("utf-8", "surrogateescape") == whole


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_portions_do_not_matter(size: int) -> None:
    data = ("0123456789é" * 2000).encode()
    portions = [data[i : i + size] for i in range(0, len(data), size)]
    assert kept(1000, portions) == kept(1000, [data])
