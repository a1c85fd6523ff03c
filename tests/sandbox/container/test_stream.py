"""The attached connection, on a socket pair and behind a real HTTP upgrade."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.descriptor_reader import DIAGNOSTIC_BYTES
from bridge.errors import ChannelClosedError, SandboxError
from bridge.sandbox.container.api import AttachedStream, FrameDecoder, attach
from bridge.sandbox.container.endpoints import EngineEndpoint

PATIENCE = 120


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


@pytest.fixture
def far() -> Iterator[socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(PATIENCE)
    NEAR[far] = near
    with near, far:
        yield far
    del NEAR[far]


NEAR: dict[socket.socket, socket.socket] = {}


def stream_to(far: socket.socket, leftover: bytes = b"") -> AttachedStream:
    return AttachedStream(NEAR[far], leftover)


async def test_what_is_printed_comes_whole_though_the_input_is_reset(far: socket.socket) -> None:
    near, feeder = socket.socketpair()
    near.setblocking(False)
    feeding = AttachedStream(near, b"")
    stream = AttachedStream(NEAR[far], b"", feeding=feeding)
    printed = b"x" * 1_000_000

    def engine() -> bytes:
        with feeder:
            feeder.settimeout(PATIENCE)
            heard = feeder.recv(100)
            # In turn, and waiting for the slower: so both are read.
            feeder.sendall(frame(1, printed))
            far.sendall(frame(1, printed))
        far.shutdown(socket.SHUT_WR)
        return heard

    received, heard = b"", []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            heard.append(await anyio.to_thread.run_sync(engine))

        tasks.start_soon(run)
        await stream.send(b"asked")
        while data := await stream.receive():
            received += data
    with pytest.raises(ChannelClosedError):
        await stream.send(b"more")
    assert (heard, received) == ([b"asked"], printed)
    stream.close()


async def test_what_came_with_the_header_comes_first(far: socket.socket) -> None:
    stream = stream_to(far, frame(1, b"early")[:10])
    far.sendall(frame(1, b"early")[10:] + frame(2, b"oops") + frame(1, b"late"))
    received = b""
    while len(received) < 9:
        received += await stream.receive()
    far.sendall(frame(3, b"error copying"))
    far.close()
    assert await stream.receive() == b""
    assert received == b"earlylate"
    assert stream.stderr == "oops\nerror copying"


@pytest.mark.parametrize(
    ("data", "received", "error"),
    [(frame(1, b"abc")[:-1], b"ab", "middle of a frame"), (b"Hello, world", b"", "attach stream")],
)
async def test_the_end_inside_a_frame_and_a_terminals_raw_output_are_errors(
    far: socket.socket, data: bytes, received: bytes, error: str
) -> None:
    stream = stream_to(far)
    far.sendall(data)
    far.close()
    assert not received or await stream.receive() == received
    with pytest.raises(ChannelClosedError, match=error):
        await stream.receive()


async def test_a_cancelled_read_loses_nothing(far: socket.socket) -> None:
    stream = stream_to(far)
    async with anyio.create_task_group() as group:
        group.start_soon(stream.receive)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    far.sendall(frame(1, b"all"))
    assert await stream.receive() == b"all"
    stream.close()


ANSWER = (
    b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"
    b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
)


@contextmanager
def engine_that(serve: Callable[[socket.socket], None]) -> Iterator[EngineEndpoint]:
    """Serve one connection in a thread."""

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=accept)
        server.start()
        yield EngineEndpoint(url=f"tcp://127.0.0.1:{listener.getsockname()[1]}", origin="the test")
        server.join()


@pytest.mark.parametrize("early", [b"", frame(1, b"early") + frame(1, b"bird")[:9]])
async def test_an_upgrade_loses_no_byte(early: bytes) -> None:
    whole = frame(1, b"early") + frame(1, b"bird")

    def serve(connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        connection.sendall(ANSWER + early)
        heard = connection.recv(65536)
        connection.sendall(whole[len(early) :] + frame(1, heard))

    with engine_that(serve) as endpoint:
        target = "/v1.41/containers/c/attach?stdin=1&stream=1"
        stream = await anyio.to_thread.run_sync(lambda: attach(endpoint, target, engine="docker"))
        await stream.send(b"ping")
        received = b""
        while data := await stream.receive():
            received += data
        assert received == b"earlybirdping"
        stream.close()


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 20\r\n\r\nNo such container: c",
            SandboxError,
            "No such container",
        ),
        (b"HTTP/1.0 500 Oops\r\n\r\nit broke", SandboxError, "it broke"),
        (b"220 mail.example ESMTP\r\n\r\n", OSError, "."),
        (b"", OSError, "."),
    ],
)
async def test_a_refusal_is_told_and_leaves_no_connection(
    answer: bytes, error: type[Exception], told: str
) -> None:
    ends: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        ends.append(connection.recv(1))

    with engine_that(serve) as endpoint, pytest.raises(error, match=told):
        await anyio.to_thread.run_sync(lambda: attach(endpoint, "/attach", engine="docker"))
    assert ends == [b""]


FRAMES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.binary(max_size=200)), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


@given(FRAMES, st.lists(st.integers(0, 2500), max_size=40))
def test_any_split_decodes_to_the_same(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    out = b"".join(
        decoder.decode(piece) for piece in pieces(b"".join(starmap(frame, frames)), cuts)
    )
    assert out == b"".join(data for stream, data in frames if stream < 2)
    assert decoder.stderr == b"".join(data for stream, data in frames if stream == 2)
    assert decoder.engine_error == b"".join(data for stream, data in frames if stream == 3)
    assert decoder.at_boundary


@pytest.mark.parametrize(
    "header", [b"\x04\0\0\0\0\0\0\x01", b"HTTP/1.1", b"\x01\x01\0\0\0\0\0\x01"]
)
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="not an attach stream"):
        FrameDecoder().decode(header)


def test_a_huge_announced_frame_costs_nothing() -> None:
    decoder = FrameDecoder()
    assert decoder.decode(struct.pack(">BxxxL", 1, 0xFFFFFFFF) + b"x" * 100) == b"x" * 100
    assert not decoder.at_boundary


def test_the_end_of_errors_is_kept() -> None:
    decoder = FrameDecoder()
    for _ in range(3):
        decoder.decode(frame(2, b"x" * DIAGNOSTIC_BYTES) + frame(2, b"end"))
    assert decoder.stderr == (b"x" * DIAGNOSTIC_BYTES + b"end")[-DIAGNOSTIC_BYTES:]
