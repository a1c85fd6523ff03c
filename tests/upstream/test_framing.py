"""Lines and messages from bytes, however they were cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from bridge.event_loop import LargeText, with_plain_text
from bridge.upstream import framing
from bridge.upstream.framing import (
    EDGE_BYTES,
    LEAST_BYTES,
    RAW,
    SALVAGE_BYTES,
    LineFramer,
    Noise,
    OversizeLine,
    TooLarge,
    decode_line,
    decode_oversize,
    parse_large_response,
    parse_response,
    parse_result,
    repair_message,
    split_batch,
)


def frame(chunks: list[bytes], max_bytes: int = 1000) -> list[bytes | OversizeLine]:
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
    assert [line for line in frame(chunks) if isinstance(line, bytes)] == expected


@given(
    sizes=st.lists(st.integers(0, 200), max_size=8),
    cut=st.integers(1, 50),
    limit=st.integers(1, 150),
)
def test_a_line_beyond_the_cap_loses_only_itself(sizes: list[int], cut: int, limit: int) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    lines = frame([data[i : i + cut] for i in range(0, len(data), cut)], limit)
    assert [line.size if isinstance(line, OversizeLine) else len(line) for line in lines] == sizes
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
    assert decode_oversize(line, 1000) is None, "it has no id"


def test_a_line_is_a_message_or_noise_with_a_preview() -> None:
    message = decode_line(b'{"jsonrpc":"2.0","method":"notifications/x"}\r')
    assert isinstance(message, JSONRPCNotification)
    assert decode_line(b"  \r") is None
    for data in (b"hello", b"42", b"[]", b"{}", b"\xff\xff", b'{"a":', b'{"id": null}'):
        assert isinstance(decode_line(data), Noise)
    noise = decode_line(b"y" * 5000)
    assert isinstance(noise, Noise)
    assert len(noise.preview) == 200


def test_a_broken_answer_becomes_an_error_of_its_request() -> None:
    broken = [
        (b'{"jsonrpc":"2.0","id":7,"result":nonsense}', 7),
        (b'{"id":"a-1","result":nonsense}', "a-1"),
        (b'{"result":{"id":3,"x":nonsense},"jsonrpc":"2.0","id":8}', 8),
        (b'{"result":nonsense,"id":9,"jsonrpc":"2.0"}', 9),
    ]
    for data, request_id in broken:
        error = decode_line(data)
        assert isinstance(error, JSONRPCError)
        assert error.id == request_id
    assert isinstance(decode_line(b'{"result":{"x":nonsense,"id":3}}'), Noise)


def test_characters_that_are_none_are_replaced() -> None:
    for raw, text in [
        (b"\xff", "\ufffd"),
        (b"\\ud83d", "\ufffd"),
        (b"\\ud83d\\ude00", "\U0001f600"),
    ]:
        message = decode_line(b'{"jsonrpc":"2.0","id":1,"result":{"t":"' + raw + b'"}}')
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


TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("sent", "result"),
    [
        ({"content": "x"}, {"content": [TEXT]}),
        ({"content": TEXT}, {"content": [TEXT]}),
        ({"content": ["x", TEXT]}, {"content": [TEXT, TEXT]}),
        ({"content": [{"text": "x"}]}, {"content": [TEXT]}),
        (
            {"content": [{"type": "text", "text": {"a": 1}}]},
            {"content": [{"type": "text", "text": '{"a": 1}'}]},
        ),
        ({"content": [TEXT], "isError": "true"}, {"content": [TEXT], "isError": True}),
        ({"content": [TEXT], "isError": "false"}, {"content": [TEXT], "isError": False}),
        ({"structuredContent": {"a": 1}}, {"structuredContent": {"a": 1}, "content": []}),
        ({"toolResult": "x"}, {"content": [TEXT]}),
        ({"toolResult": {"a": 1}}, {"content": [], "structuredContent": {"a": 1}}),
        ({"toolResult": {"content": [TEXT]}}, {"content": [TEXT]}),
        ({"a": 1, "_meta": {}}, {"content": [], "structuredContent": {"a": 1}}),
        (
            {"isError": True, "message": "boom"},
            {"content": [], "structuredContent": {"message": "boom"}, "isError": True},
        ),
        ({"isError": True}, {"content": [], "isError": True}),
        ({"isError": False, "a": 1}, {"content": [], "structuredContent": {"a": 1}}),
        ({}, {"content": []}),
        ({RAW: []}, {"content": []}),
        ({RAW: None}, {"content": []}),
        ({RAW: "x"}, {"content": [TEXT]}),
        ({RAW: [TEXT]}, {"content": [TEXT]}),
        ({RAW: [1, 2]}, {"content": [], "structuredContent": [1, 2]}),
        ({RAW: 5}, {"content": [], "structuredContent": 5}),
    ],
)  # fmt: skip
def test_every_form_of_result_is_carried(sent: Any, result: Any) -> None:
    assert parse_result(sent) == result
    assert parse_result(result) == {"content": [], **result}


def test_a_message_in_the_protocols_form_is_unchanged() -> None:
    for line in (
        b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}',
        b"[not JSON",
        b'"text"',
    ):
        assert repair_message(line) in (line, None)


def test_messages_inside_an_array_are_read_one_by_one() -> None:
    messages = [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "method": "x"}]
    parts = split_batch(json.dumps(messages).encode())
    assert parts is not None
    assert [json.loads(part) for part in parts] == messages
    assert split_batch(b"[1, 2]") is split_batch(b"[]") is split_batch(b"[x") is None


LINE = 'one of many lines, \\ with "quotes", ä, \U0001f600 and \ttabs\n'
LARGE = LINE * (2 * LEAST_BYTES // len(LINE))


def response(text: str, *, ascii_only: bool = True, **more: Any) -> bytes:
    result = {"content": [{"type": "text", "text": text}], **more}
    message = {"jsonrpc": "2.0", "id": 7, "result": result}
    return json.dumps(message, ensure_ascii=ascii_only).encode()


def plain(line: bytes) -> Any:
    found = parse_large_response(line)
    assert found is not None
    assert isinstance(found[1]["content"][0]["text"], LargeText)
    return found[0], with_plain_text(found[1])


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_large_response_is_parsed_as_if_read_whole(ascii_only: bool) -> None:
    line = response(LARGE, ascii_only=ascii_only, isError=False, _meta={"a": 'b"'})
    assert plain(line) == parse_response(line)


@given(
    unit=st.text(
        st.sampled_from(["\\", '"', "é", "€", "\U0001f600", "\n", "a", "u", "d"]), min_size=1
    ),
    ascii_only=st.booleans(),
    piece=st.integers(min_value=40, max_value=60),
)
def test_a_large_text_may_be_cut_anywhere(unit: str, ascii_only: bool, piece: int) -> None:
    line = response("x" + unit * (2 * EDGE_BYTES // len(unit)), ascii_only=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "LEAST_BYTES", 0)
        patch.setattr(framing, "PIECE_BYTES", piece)
        found = parse_large_response(line)
    # A text with too many backslashes in a row cannot be cut, and is read whole.
    assert found is None or (found[0], with_plain_text(found[1])) == parse_response(line)
    assert found is not None or "\\" in unit


READ_WHOLE = {
    "an error": response(LARGE, isError=True),
    "two large texts": response(LARGE, structuredContent={"result": LARGE}),
    "data": response(f" [{json.dumps(LARGE)}]"),
    "blanks": response("  \n" + " " * len(LARGE)),
    "no UTF-8": response(LARGE).replace(b"of many", b"of \xff many", 1),
    "a quote": response(LARGE).replace(b"of many", b'of "many', 1),
    "a control character": response(LARGE).replace(b"of many", b"of \x01 many", 1),
    "half a character": response(LARGE).replace(b"of many", b"of \\ud83d many", 1),
    "cut off": response(LARGE)[:-2],
    "a request": response(LARGE).replace(b'"id": 7', b'"id": 7, "method": "x"', 1),
    "two blocks": response(LARGE).replace(
        b'{"type": "text"', b'{"type": "text"}, {"type": "text"', 1
    ),
    "nothing but backslashes": b'{"id": 7, "result": {"content": [{"type": "text", "text": "'
    + b"\\" * len(LARGE),
}


@pytest.mark.parametrize("case", READ_WHOLE)
def test_other_large_responses_are_read_whole(case: str) -> None:
    assert parse_large_response(READ_WHOLE[case]) is None
