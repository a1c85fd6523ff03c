"""The host's decoder against bytes that mean harm."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.guest.protocol import wire
from bridge.guest.protocol.wire import LineDecoder, WireError, decode_guest_frame, encode
from bridge.rpc.channel import Channel, frame_cost
from tests.fuzz.frames import guest_frames, json_values, lines, portions, searched, streams

LINE_LIMIT = 200

HEAD = b'{"type":"call","id":1,"method":"m","params":{"a":['


class _Stream:
    """A sandbox that says what it was given, and ends."""

    def __init__(self, data: list[bytes]) -> None:
        self._left = data[::-1]

    async def send(self, data: bytes) -> None:
        """Take it."""

    async def receive(self) -> bytes:
        return self._left.pop() if self._left else b""


def receive_all(data: list[bytes]) -> tuple[list[wire.GuestFrame], str]:
    frames: list[wire.GuestFrame] = []

    async def receive() -> str:
        channel = Channel(_Stream(data), max_guest_frame_bytes=LINE_LIMIT)
        try:
            while (frame := await channel.receive()) is not None:
                frames.append(frame)
        except WireError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return frames, anyio.run(receive)


@searched
@given(streams, st.data())
def test_how_bytes_arrive_changes_neither_the_frames_nor_the_error(
    stream: bytes, data: st.DataObject
) -> None:
    cut = data.draw(portions(stream))
    assert repr(receive_all(cut)) == repr(receive_all([stream] if stream else []))


@searched
@given(streams, st.data())
def test_what_is_held_of_a_line_stays_within_the_limit(stream: bytes, data: st.DataObject) -> None:
    decoder = LineDecoder(LINE_LIMIT)
    for portion in data.draw(portions(stream)):
        try:
            assert all(len(line) <= LINE_LIMIT for line in decoder.feed(portion))
        except WireError:
            return
        assert decoder._size <= LINE_LIMIT


@searched
@example(b'{"type":"call","id":1,"method":"m","params":{"a":1e999}}')
@given(lines)
def test_a_line_is_refused_or_is_a_frame_that_can_be_written_again(line: bytes) -> None:
    try:
        frame = decode_guest_frame(line)
    except WireError:
        return
    again = encode(frame)
    assert again[wire.json_start(again) :].count(b"\n") == 1
    assert decode_guest_frame(again[:-1]) == frame


@searched
@given(guest_frames)
def test_every_frame_survives_the_channel(frame: wire.GuestFrame) -> None:
    assert decode_guest_frame(encode(frame)[:-1]) == frame


def _parsed_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_parsed_values, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_parsed_values, value))
    return 1


@searched
@given(json_values, st.booleans())
def test_the_count_of_values_is_never_too_low(value: Any, ascii_only: bool) -> None:
    """Whatever the strings hold: a guest must not hide values behind a quotation mark."""
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert wire.count_values(line, exact_above=0) >= _parsed_values(value) - 1


@searched
@given(st.lists(st.text(alphabet='",[]{}\\\n\x00aé', max_size=30), max_size=8))
def test_what_is_written_inside_strings_does_not_count(texts: list[str]) -> None:
    line = json.dumps(texts).encode()
    assert wire.count_values(line, exact_above=0) == max(1, len(texts))


@searched
@given(lines)
def test_counting_values_takes_any_bytes(line: bytes) -> None:
    assert wire.count_values(line, exact_above=0) >= 0


def test_strings_across_the_portions_of_the_count_stay_strings() -> None:
    text = json.dumps(["," * 700_000, "[" * 700_000, [","]]).encode()
    assert wire.count_values(text, exact_above=0) == 4


UNITS = {
    "lists": [b"[]"],
    "nested": [b"[[]]"],
    "objects": [b'{"a":[]}'],
    "objects in objects": [b'{"a":{"a":{"a":{"a":0}}}}'],
    "strings": [b'"abcd"'],
    "characters beyond the first plane": [b'"\xf0\x9f\x98\x80"'],
    "numbers": [b"123456789012"],
    "names": [b'{"%d\xf0\x9f\x98\x80":1.5}' % number for number in range(20_000)],
    "wide text": [b'"' + b"a" * 1_000_000 + b'\xf0\x9f\x98\x80"'],
    "escaped wide text": [b'"' + b"a" * 1_000_000 + b'\\ud83d\\ude00"'],
}


@contextmanager
def trace_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", UNITS)
def test_a_frame_takes_no_more_memory_than_it_is_taken_for(kind: str) -> None:
    unit = UNITS[kind]
    line = HEAD + b",".join(unit * (1 if len(unit[0]) > 1000 else 20_000 // len(unit))) + b"]}}"
    with trace_memory():
        frame = decode_guest_frame(line)
        kept, _ = tracemalloc.get_traced_memory()
    assert kept <= frame_cost(line), frame


@pytest.mark.parametrize("unit", [b"[]", b'{"a":1}', b'"a"', b"0", b"[[[]]]"])
async def test_a_line_of_too_many_values_is_refused_before_it_is_parsed(unit: bytes) -> None:
    """Sixteen megabytes of brackets would become hundreds of megabytes of objects."""
    line = HEAD + b",".join([unit] * (wire.MAX_VALUES + 1)) + b"]}}\n"
    with trace_memory():
        with pytest.raises(match="too many values"):
            await Channel(_Stream([line])).receive()
        _, peak = tracemalloc.get_traced_memory()
    assert peak < 4 * len(line) + 8 * 2**20


async def test_a_long_text_full_of_punctuation_passes() -> None:
    line = HEAD + json.dumps('{"a": [1, 2]},\\\n' * 400_000).encode() + b"]}}\n"
    assert await Channel(_Stream([line])).receive() is not None
