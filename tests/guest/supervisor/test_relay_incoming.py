"""The relay's buffers: streams, lines of the host, and descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.processes import Outbox, private, read_some
from bridge.guest.protocol.wire import Call, Output, Ping, Pong, Reply, Run, Stop, encode
from bridge.guest.supervisor.relay import PIECE_BYTES, TAIL_BYTES, Capture, Incoming
from bridge.rpc.channel import LARGE_CHARACTERS, encode_reply

STOPS = {encode(Stop(late=late)): late for late in (True, False)}
PING = encode(Ping())

RUNS = [encode(Run(code=code)) for code in ("1", "x" * 100, next(iter(STOPS)).decode())]

OURS = {*STOPS, PING, *RUNS}

HOSTILE = "".join(line.decode() for line in (*STOPS, PING, RUNS[0]))
"""A text that a server may answer, or a program have answered."""


def _beside(text: str) -> bytes:
    data = text.encode()
    value = {"rest": {"a": None}, "texts": [["a"]]}
    return b"+%d\n%b%b" % (len(data), data, encode(Reply(id=1, value=value)))


messages = st.one_of(
    st.sampled_from(sorted(OURS)),
    st.builds(lambda value: encode(Reply(id=1, value=value)), st.text() | st.just(HOSTILE)),
    st.builds(_beside, st.text(min_size=1) | st.just(HOSTILE) | st.just("x\n" + HOSTILE + "+9\n")),
    # Nothing that the host sends, but all of it has to come through.
    st.sampled_from([b"\n", b'{"type"\n', b'{"type":"stop","late":1}\n', b'{"type":"sto']).map(
        lambda line: line if line.endswith(b"\n") else line + b"\n"
    ),
)


@given(st.lists(messages, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_the_worker_gets_all_but_what_is_ours_however_it_is_cut(
    sent: list[bytes], sizes: list[int]
) -> None:
    heard: list[bool] = []
    pings: list[bytes] = []
    incoming = Incoming(heard.append, lambda: pings.append(PING))
    data, passed = b"".join(sent), b""
    while data:
        size = sizes[len(data) % len(sizes)]
        passed += b"".join(incoming.split(data[:size]))
        data = data[size:]
    assert passed == b"".join(message for message in sent if message not in OURS)
    assert pings == [message for message in sent if message == PING]
    assert incoming.runs == [message[:-1] for message in sent if message in RUNS]
    assert heard == [STOPS[message] for message in sent if message in STOPS]


def test_a_text_beside_a_reply_is_not_held_back() -> None:
    text = HOSTILE * (LARGE_CHARACTERS // len(HOSTILE) + 1)
    mark, *pieces = encode_reply(1, {"a": text})
    assert mark.startswith(b"+")
    incoming = Incoming(lambda late: pytest.fail("heard a text"), lambda: None)
    assert incoming.split(mark + pieces[0][:9]) == [mark, pieces[0][:9]]


def test_the_supervisor_answers_while_its_program_is_busy(init_guest: Any) -> None:
    init_guest.hello()
    init_guest.start("while True: pass")
    init_guest.send(Ping())
    assert isinstance(init_guest.receive(), Pong)


def test_a_program_whose_time_is_over_is_interrupted(guest_on: Any) -> None:
    def answer(guest: Any, call: Call) -> None:
        guest.write(encode(Stop(late=True)))

    code = 'print("still here", flush=True)\nawait mcp_git_hub.echo(text="stop")'
    finished = guest_on.run(code, answer)
    assert (finished.stdout, finished.timed_out) == ("still here\n", True)


def kept(limit: int, portions: list[bytes]) -> tuple[str, int]:
    capture = Capture("stdout", limit)
    data = b"".join(capture.add(portion) for portion in portions)
    frames = capture.finish()
    data += b"".join(f.data for f in frames)
    return data.decode("utf-8", "surrogateescape"), sum(f.skipped for f in frames)


def test_the_first_half_is_sent_at_once_and_the_last_is_held_back() -> None:
    capture = Capture("stderr", 10)
    assert capture.add(b"abc") == b"abc"
    assert capture.add(b"defgh") == b"de"
    assert capture.add(b"ijklmnop") == b""
    assert capture.finish() == [Output("stderr", b"lmnop", skipped=6)]


def test_a_character_split_between_portions_is_one_character() -> None:
    capture = Capture("stdout", 100)
    assert capture.add("é".encode()[:1]) == b""
    assert capture.add("é".encode()[1:]) == "é".encode()


def test_long_output_is_cut_into_frames() -> None:
    capture = Capture("stdout", 10 * PIECE_BYTES)
    capture.add(b"x" * 10 * PIECE_BYTES)
    assert [len(frame.data) for frame in capture.finish()] == [PIECE_BYTES] * 2


def test_of_a_long_stream_little_is_held_back() -> None:
    capture = Capture("stdout", 100 * TAIL_BYTES)
    assert len(capture.add(b"x" * 200 * TAIL_BYTES)) == 99 * TAIL_BYTES
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


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def test_reading_tells_nothing_yet_from_the_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert read_some(reader) is None
    os.write(writer, b"x")
    assert read_some(reader) == b"x"
    os.close(writer)
    assert read_some(reader) == b""


def test_what_a_pipe_does_not_take_waits(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outbox = Outbox(writer)
    outbox.put(b"a" * 100_000)
    outbox.put(b"")
    outbox.put(b"b" * 100_000)
    outbox.flush()
    assert 0 < outbox.size < 200_000
    received = b""
    while len(received) < 200_000:
        received += read_some(reader) or b""
        outbox.flush()
    assert received == b"a" * 100_000 + b"b" * 100_000
    assert outbox.size == 0


def test_what_is_queued_goes_out_in_one_write() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        outbox = Outbox(ours.fileno())
        outbox.put(b"first, ", b"second, ")
        outbox.put(b"third")
        outbox.flush()
        assert theirs.recv(100) == b"first, second, third"


def test_nothing_is_kept_for_a_reader_that_has_gone(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    outbox = Outbox(writer)
    outbox.put(b"x")
    outbox.flush()
    assert outbox.broken
    outbox.put(b"y")
    assert outbox.size == 0


def test_private_descriptors_are_high_and_stay_here(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    copy = private(os.dup(writer))
    assert copy >= 64
    assert not os.get_inheritable(copy)
    os.write(copy, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(copy)
