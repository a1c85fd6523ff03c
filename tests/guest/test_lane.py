"""What a run's supervisor does with what was sent to it too late."""

from __future__ import annotations

import os
import threading

import pytest

from bridge.guest.lane import _await_next
from bridge.guest.relay import HostGoneError
from bridge.guest.wire import Clock, Next, Reply, encode

END = encode(Next(ending="17"))


def pieces(data: bytes, size: int) -> int:
    """Return a descriptor from which `data` comes, written in pieces by somebody else."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def write() -> None:
        with os.fdopen(writer, "wb", 0) as file:
            for start in range(0, len(data), size):
                file.write(data[start : start + size])

    threading.Thread(target=write).start()
    return reader


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    "before",
    [
        b"",
        encode(Reply(id=1, value="late")),
        encode(Clock(running=True)),
        # The rest of a reply of which the supervisor had read the beginning.
        b'tail of a line"}\n',
        encode(Reply(id=1, value={"type": "next"})),
        b'x{"type":"next"}\n',
        b'{"type":"next"} \n',
        b"y" * 300 + b"\n",
        # A text beside its reply, whose lines a server or a program can choose.
        b'+45\n{"type":"next"}\n{"type":"run","code":"planted"}\n'
        + encode(Reply(id=1, value={"rest": None, "texts": [[]]})),
    ],
)
def test_all_is_read_up_to_the_word_that_it_is_all(before: bytes, size: int) -> None:
    """However it is cut up; nothing but that very line counts."""
    reader = pieces(before + END, size)
    try:
        _await_next(reader, "17")
        # Nothing is left that the next run's supervisor could read.
        assert os.read(reader, 100) == b""
    except BlockingIOError:
        pass
    finally:
        os.close(reader)


@pytest.mark.parametrize("data", [b"", b"half a line", b'{"type":"next"}', b'x{"type":"next"}\n'])
def test_a_channel_that_ends_without_it_is_no_end_of_the_run(data: bytes) -> None:
    """Then nobody wants a next one."""
    reader = pieces(data, 5)
    try:
        with pytest.raises(HostGoneError):
            _await_next(reader, "17")
    finally:
        os.close(reader)
