"""The wire format, and JSON without the `json` module."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol import json_text, wire
from bridge.guest.protocol.wire import (
    LineDecoder,
    Reply,
    decode_guest_frame,
    decode_host_frame,
    encode,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)

HOST_FRAMES = [
    wire.Stop(late=False),
    wire.Stop(late=True),
    wire.Ping(),
    wire.Run(code="print('\n')", argv=["a"], servers=[{"name": "x"}], limits={"timeout": 1.5}),
]


@pytest.mark.parametrize("frame", HOST_FRAMES, ids=repr)
def test_host_frames_survive_the_channel(frame: wire.HostFrame) -> None:
    [line] = LineDecoder().feed(encode(frame))
    assert decode_host_frame(line) == frame


@given(VALUES)
def test_any_json_value_survives_a_reply(value: object) -> None:
    data = encode(Reply(id=1, value=value))
    assert data.count(b"\n") == 1
    assert decode_host_frame(data[:-1]) == Reply(id=1, value=value)


def test_raw_bytes_over_the_limit_are_refused_before_they_come() -> None:
    with pytest.raises(match="longer than 100 bytes"):
        list(LineDecoder(100).feed(b"+97\n"))


@pytest.mark.parametrize(
    "long", [b"1234567890", b"x" * 100, b"+30\n" + b"x\n" * 15 + b"line", b"+10\nabc"]
)
def test_a_supervisor_drops_a_long_or_forgotten_frame_and_no_other(long: bytes) -> None:
    for size in range(1, len(long) + 1):
        decoder = LineDecoder(6, drops_long=True)
        pieces = [long[at : at + size] for at in range(0, len(long), size)]
        assert [line for piece in (b"ok\n", *pieces) for line in decoder.feed(piece)] == [b"ok"]
        decoder.forget()
        assert list(decoder.feed(b"\n123456\n")) == [b"123456"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b'{"type":"call","id":NaN,"method":"m","params":{}}', "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"42", "JSON int"),
        (b"[]", "JSON list"),
        (b"{}", "unknown frame type"),
        (b'{"type":["call"]}', "unknown frame type"),
        (b'{"type":"run","code":""}', "unknown frame type"),
        (b'{"type":"stop","late":true}', "unknown frame type 'stop'"),
        (b'{"type":"call","id":1,"method":"m"}', "'params' is missing"),
        (b'{"type":"call","id":1,"type":"exited","code":0}', "does not come first"),
        (b'{"id":1,"type":"call","method":"m","params":{}}', "does not come first"),
        (b'{"type":"call","id":true,"method":"m","params":{}}', "'id' is a bool"),
        (b'{"type":"call","id":"1","method":"m","params":{}}', "'id' is a str"),
        (b'{"type":"call","id":-1,"method":"m","params":{}}', "'id' is out of range"),
        (b'{"type":"call","id":9007199254740992,"method":"m","params":{}}', "out of range"),
        (b'{"type":"call","id":1,"method":"m","params":[]}', "'params' is a list"),
        (b'{"type":"call","id":1,"method":"m","params":{},"extra":1}', "'extra' is not known"),
        (b'{"type":"output","stream":"stdin"}', "neither"),
        (b'{"type":"output","stream":"stdout","data":"x"}', "'data' is a str"),
        (b'+1\nx{"type":"call","id":1,"method":"m","params":{}}', "is not known"),
        (b'+9\nx{"type":"stop"}', "not JSON"),
        (b'{"type":"done","outcome":"fine","exit_code":0}', "not a known outcome"),
        (b'{"type":"exited","code":1.5}', "'code' is a float"),
    ],
)
def test_a_malformed_guest_frame_is_refused(line: bytes, complaint: str) -> None:
    with pytest.raises(wire.WireError, match=complaint):
        decode_guest_frame(line)


def test_a_host_frame_with_unknown_fields_is_refused() -> None:
    with pytest.raises(wire.WireError, match="malformed reply"):
        decode_host_frame(b'{"type":"reply","id":1,"colour":"red"}')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_outside_json_is_a_value_error(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(wire.Call(id=1, method="m", params={"x": value}))


def test_a_value_nested_beyond_the_stack_is_a_value_error() -> None:
    value: list[object] = []
    for _ in range(sys.getrecursionlimit() * 20):
        value = [value]
    with pytest.raises(ValueError, match="too deeply"):
        encode(Reply(id=1, value=value))


LEAN = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from bridge.guest.protocol import json_text\n"
    "read = json_text.decoder()\n"
    "assert read('[1, {\"a\": 2.5}]') == [1, {'a': 2.5}]\n"
    "assert not {'json', 're'} & set(sys.modules)\n"
    "for text in sys.argv[2:]:\n"
    "    try:\n"
    "        read(text)\n"
    "    except ValueError:\n"
    "        continue\n"
    "    raise SystemExit('it reads ' + text)\n"
)
BROKEN = ("", " ", "{", '{"a"', '{"a": 1,}', "[1 2]", '"\\x"', '"\n"', "1 1", "tru", "[" * 5 + "]")


@given(VALUES)
def test_it_writes_what_json_writes_and_reads_it_again(value: Any) -> None:
    text = json_text.encoder(ascii_only=True)(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert json_text.decoder()(f" {text}\n") == json.loads(text)
    plain = json_text.encoder()(value)
    assert plain == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    ordered = json_text.encoder(sort_keys=True, allow_nan=True)([value, math.inf])
    assert ordered == json.dumps(
        [value, math.inf], separators=(",", ":"), ensure_ascii=False, sort_keys=True
    )


@pytest.mark.parametrize("text", BROKEN)
def test_what_json_refuses_is_refused_with_a_value_error(text: str) -> None:
    for read in (json.loads, json_text.decoder()):
        with pytest.raises(ValueError, match="char"):
            read(text)


def test_it_does_not_import_json_and_refuses_the_same_without_it() -> None:
    source = json_text.__file__.partition("/bridge/")[0]
    command = [sys.executable, "-I", "-S", "-c", LEAN, source, *BROKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("value", "kind"), [(float("nan"), ValueError), (object(), TypeError), ({1j: 1}, TypeError)]
)
def test_what_json_does_not_have_is_not_written(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        json_text.encoder()(value)


def test_a_cycle_is_not_written() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(RecursionError):
        json_text.encoder()(cycle)
