"""What the host sends: the worker's, but for lines about the run's time and a session's runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol.wire import Call, Ping, Pong, Reply, Run, Stop, encode
from bridge.guest.supervisor.relay import Incoming
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
        passed += b"".join(incoming.feed(data[:size]))
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
    assert incoming.feed(mark + pieces[0][:9]) == [mark, pieces[0][:9]]


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
