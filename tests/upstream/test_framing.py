"""Lines and messages from bytes, however they were cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from mcp.types import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from bridge.upstream.framing import (
    SALVAGE_BYTES,
    Line,
    LineFramer,
    Noise,
    OversizeLine,
    TooLarge,
    decode_line,
    decode_oversize,
)


def frame(chunks: list[bytes], max_bytes: int = 1000) -> list[Line | OversizeLine]:
    framer = LineFramer(max_bytes)
    lines = [line for chunk in chunks for line in framer.feed(chunk)]
    rest = framer.finish()
    return lines if rest is None else [*lines, rest]


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=10))
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    chunks = [data[start:end] for start, end in zip(places, places[1:], strict=False)]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line.data for line in frame(chunks) if isinstance(line, Line)] == expected


@given(
    sizes=st.lists(st.integers(0, 200), max_size=8),
    cut=st.integers(1, 50),
    limit=st.integers(1, 150),
)
def test_a_line_beyond_the_cap_loses_only_itself(sizes: list[int], cut: int, limit: int) -> None:
    """Its neighbours arrive, and its size is known although it was not kept."""
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    lines = frame([data[i : i + cut] for i in range(0, len(data), cut)], limit)
    assert [line.size if isinstance(line, OversizeLine) else len(line.data) for line in lines] == (
        sizes
    )
    assert all(
        isinstance(line, OversizeLine) == (s > limit) for line, s in zip(lines, sizes, strict=True)
    )


def test_an_endless_line_is_not_kept() -> None:
    framer = LineFramer(1000)
    for _ in range(1000):
        assert framer.feed(b"x" * 10_000) == []
    line = framer.finish()
    assert isinstance(line, OversizeLine)
    assert line.size == 10_000_000
    assert len(line.head) == len(line.tail) == SALVAGE_BYTES


def test_messages_are_parsed_and_blank_lines_are_nothing() -> None:
    message = decode_line(Line(b'{"jsonrpc":"2.0","method":"notifications/x"}\r'))
    assert isinstance(message, JSONRPCNotification)
    assert decode_line(Line(b"  \r")) is None


def test_what_is_no_message_is_noise_with_a_preview() -> None:
    """Also JSON that is not JSON-RPC, and a message without an id."""
    for data in (b"hello", b"42", b"[]", b"{}", b"\xff\xff", b'{"a":', b'{"id": null}'):
        assert isinstance(decode_line(Line(data)), Noise)
    noise = decode_line(Line(b"y" * 5000))
    assert isinstance(noise, Noise)
    assert len(noise.preview) == 200


def test_a_broken_answer_becomes_an_error_of_its_request() -> None:
    """Whichever way its members are ordered, and never that of an id inside the result."""
    broken = [
        (b'{"jsonrpc":"2.0","id":7,"result":nonsense}', 7),
        (b'{"id":"a-1","result":nonsense}', "a-1"),
        (b'{"result":{"id":3,"x":nonsense},"jsonrpc":"2.0","id":8}', 8),
        (b'{"result":nonsense,"id":9,"jsonrpc":"2.0"}', 9),
    ]
    for data, request_id in broken:
        error = decode_line(Line(data))
        assert isinstance(error, JSONRPCError)
        assert error.id == request_id
    assert isinstance(decode_line(Line(b'{"result":{"x":nonsense,"id":3}}')), Noise)


def test_characters_that_are_none_are_replaced() -> None:
    """Invalid UTF-8 and lone surrogates; pairs of surrogates are characters."""
    for raw, text in [
        (b"\xff", "\ufffd"),
        (b"\\ud83d", "\ufffd"),
        (b"\\ud83d\\ude00", "\U0001f600"),
    ]:
        message = decode_line(Line(b'{"jsonrpc":"2.0","id":1,"result":{"t":"' + raw + b'"}}'))
        assert isinstance(message, JSONRPCResponse)
        assert message.result == {"t": text}


@given(
    request_id=st.one_of(st.integers(0, 10**9), st.text("abc-123", min_size=1, max_size=20)),
    last=st.booleans(),
)
def test_an_oversize_answer_is_told_by_either_end(request_id: int | str, last: bool) -> None:
    """Servers on the TypeScript SDK put the id last, others first."""
    identity = f'"jsonrpc":"2.0","id":{json.dumps(request_id)}'
    result = '"result":{"id":-1,"text":"' + "x" * 3000 + '"}'
    text = f"{{{result},{identity}}}" if last else f"{{{identity},{result}}}"
    (line,) = frame([text.encode()], 100)
    assert isinstance(line, OversizeLine)
    error = decode_oversize(line, 100)
    assert error is not None
    assert error.id == request_id
    assert error.error.data == TooLarge(len(text), 100)


def test_an_oversize_line_of_nobody_is_nobodys() -> None:
    (line,) = frame([b"x" * 2000], 100)
    assert isinstance(line, OversizeLine)
    assert decode_oversize(line, 100) is None
