"""The attach stream's decoder, whatever the pieces it is fed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.sandbox.container.stream import DIAGNOSTIC_BYTES, FrameDecoder

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
    assert decoder.stderr == b"".join(data for stream, data in frames if stream == 2)
    assert decoder.engine_error == b"".join(data for stream, data in frames if stream == 3)
    assert decoder.at_boundary


@pytest.mark.parametrize(
    "header", [b"\x04\0\0\0\0\0\0\x01", b"HTTP/1.1", b"\x01\x01\0\0\0\0\0\x01"]
)
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="not an attach stream"):
        FrameDecoder().feed(header)


def test_a_huge_announced_frame_costs_nothing() -> None:
    """Payloads are passed on, never gathered (law 5)."""
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">BxxxL", 1, 0xFFFFFFFF) + b"x" * 100) == b"x" * 100
    assert not decoder.at_boundary


def test_the_end_of_errors_is_kept() -> None:
    decoder = FrameDecoder()
    for _ in range(3):
        decoder.feed(encode([(2, b"x" * DIAGNOSTIC_BYTES), (2, b"end")]))
    assert decoder.stderr == (b"x" * DIAGNOSTIC_BYTES + b"end")[-DIAGNOSTIC_BYTES:]
