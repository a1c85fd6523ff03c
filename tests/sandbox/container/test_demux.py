"""The attach stream's decoder, whatever the pieces it is fed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.sandbox.container.stream import FrameDecoder, FramingError, Tail

FRAMES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.binary(max_size=200)), max_size=12)


def encode(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in frames)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


@given(FRAMES, st.lists(st.integers(0, 2500), max_size=40))
def test_any_split_decodes_to_the_same(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    out = b"".join(decoder.feed(piece) for piece in pieces(encode(frames), cuts))
    assert out == b"".join(data for stream, data in frames if stream < 2)
    assert decoder.stderr.text() == b"".join(d for s, d in frames if s == 2).decode(
        "utf-8", "backslashreplace"
    )
    assert decoder.engine_error.text() == b"".join(d for s, d in frames if s == 3).decode(
        "utf-8", "backslashreplace"
    )
    assert decoder.at_boundary


@given(st.integers(1, 10))
def test_a_stream_cut_short_is_known_to_be(missing: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode([(1, b"abc")])[:-missing])
    assert not decoder.at_boundary


@pytest.mark.parametrize(
    "header", [b"\x04\0\0\0\0\0\0\x01", b"HTTP/1.1", b"\x01\x01\0\0\0\0\0\x01"]
)
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(FramingError):
        FrameDecoder().feed(header)


def test_a_huge_announced_frame_costs_nothing() -> None:
    """Payloads are passed on, never gathered (law 5)."""
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">BxxxL", 1, 0xFFFFFFFF) + b"x" * 100) == b"x" * 100
    assert not decoder.at_boundary


@given(st.lists(st.binary(max_size=60), max_size=60), st.integers(1, 100))
def test_a_tail_is_the_end_of_what_was_added(parts: list[bytes], limit: int) -> None:
    tail = Tail(limit)
    for part in parts:
        tail.append(part)
    expected = b"".join(parts)[-limit:]
    assert tail.text() == expected.decode("utf-8", "backslashreplace")
