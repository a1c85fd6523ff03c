"""Replies with large texts beside them: what is sent, and what the guest makes of it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from bridge.event_loop import LargeText
from bridge.gate.redaction import Redactor
from bridge.guest.api.client import read_reply
from bridge.guest.protocol.wire import LineDecoder, Reply, encode
from bridge.rpc.channel import LARGE_CHARACTERS, encode_reply

LARGE = "x" * LARGE_CHARACTERS


def received(data: bytes, portion: int = 1 << 20) -> list[Any]:
    """Return the replies that a guest reads when `data` comes in portions of that size."""
    decoder = LineDecoder()
    portions = (data[start : start + portion] for start in range(0, len(data), portion))
    return [read_reply(frame) for part in portions for frame in decoder.feed(part)]


@pytest.mark.parametrize(
    "value",
    [
        {"json": LARGE},
        {"json": "é\n+5\n" * LARGE_CHARACTERS},
        {"json": {"result": LARGE, "more": [1, None]}},
        {"blob": {"mimeType": "image/png", "data": LARGE}},
        {"json": {"a": {"b": {"c": LARGE}}}},
        {"json": [LARGE]},
        {"json": {"one": LARGE, "two": LARGE + "y", LARGE: 1}},
        {"json": {"rest": LARGE, "texts": [["rest"]]}},
        {"json": LARGE + "\udc80"},
        LARGE,
        {"json": "short"},
        None,
    ],
)
def test_a_guest_reads_what_was_answered(value: Any) -> None:
    after = encode(Reply(id=8, value="the next"))
    first, second = received(b"".join(encode_reply(7, value)) + after)
    assert first["id"] == 7
    assert first["value"] == value
    assert second["value"] == "the next"


@pytest.mark.parametrize("portion", [1, 7, 4096])
def test_however_the_bytes_are_cut(portion: int) -> None:
    value = {"json": "ä\n" * LARGE_CHARACTERS}
    (reply,) = received(b"".join(encode_reply(7, value)), portion)
    assert reply["value"] == value


def test_a_large_text_is_sent_as_it_is() -> None:
    data = b"".join(encode_reply(7, {"json": '"' * LARGE_CHARACTERS}))
    assert data.startswith(b"+%d\n" % LARGE_CHARACTERS + b'"' * LARGE_CHARACTERS)
    assert len(data) < LARGE_CHARACTERS + 200


def test_a_text_in_pieces_reaches_the_guest_as_one() -> None:
    value = {"json": LargeText([b"begins, ", "ends: ä".encode()])}
    (reply,) = received(b"".join(encode_reply(7, value)))
    assert reply["value"] == {"json": "begins, ends: ä"}


def test_a_secret_in_two_pieces_of_a_text_is_taken_out() -> None:
    value = {"json": LargeText([b"the token is xoxb-12345", b"6789-secret, they say"])}
    data = b"".join(encode_reply(7, value, Redactor({"xoxb-123456789-secret": "TOKEN"})))
    (reply,) = received(data)
    assert reply["value"]["json"].startswith("the token is [")
    assert reply["value"]["json"].endswith(", they say")
    assert b"secret," not in data


def test_a_small_answer_is_one_line_of_json() -> None:
    (data,) = encode_reply(7, {"json": {"a": [1, "é"]}})
    assert json.loads(data) == {
        "type": "reply",
        "id": 7,
        "value": {"json": {"a": [1, "é"]}},
        "error": None,
    }
    assert data.count(b"\n") == 1


def test_numbers_that_json_lacks_are_sent_as_python_reads_them() -> None:
    assert b'"n":Infinity' in b"".join(encode_reply(7, {"json": {"t": LARGE, "n": math.inf}}))
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode_reply(7, {"json": {1, 2}})
