"""What servers send as a result, in whatever form, becomes a result with a list of blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.upstream.framing import Line, decode_line
from bridge.upstream.results import RAW, parse_result, repair_message, split_batch

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


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ({"error": "it broke"}, (-32603, "it broke")),
        ({"error": {"message": "it broke"}}, (-32603, "it broke")),
        ({"error": {"code": 7, "message": None}}, (7, '{"code": 7, "message": null}')),
        ({"error": {"code": "E1", "message": "it broke"}}, (-32603, "it broke")),
    ],
)
def test_an_error_in_any_form_says_what_the_server_said(response: Any, error: Any) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, **response}).encode()
    decoded: Any = decode_line(Line(line))
    assert (decoded.error.code, decoded.error.message) == error


def test_a_message_in_the_protocols_form_is_the_same_bytes() -> None:
    for line in (
        b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}',
        b"[not JSON",
        b'"text"',
    ):
        assert repair_message(line) is line


def test_messages_inside_an_array_are_read_one_by_one() -> None:
    messages = [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "method": "x"}]
    parts = split_batch(json.dumps(messages).encode())
    assert parts is not None
    assert [json.loads(part) for part in parts] == messages
    assert split_batch(b"[1, 2]") is split_batch(b"[]") is split_batch(b"[x") is None
