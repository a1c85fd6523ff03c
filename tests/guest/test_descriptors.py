"""Queues and lines over non-blocking descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from bridge.guest.processes import Outbox, private, read_some


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
