"""Messages are written into a pipe at once, whole and in order."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from bridge.upstream.direct_dispatcher import MAX_QUEUED, DirectDispatcher, LineWriter
from bridge.upstream.framing import parse_response
from tests.waiting import PATIENCE_SECONDS

MORE_THAN_A_PIPE = 300_000


@pytest.fixture
def wire() -> None:
    """Replaces the check of messages by the protocol's schema, since these are none."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    yield reader, writer
    for fd in (reader, writer):
        os.close(fd)


async def read(reader: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        await anyio.wait_readable(reader)
        data += os.read(reader, size - len(data))
    return data


async def flush(writer: LineWriter, reader: int, *sizes: int) -> bytes:
    """Return so many bytes from the pipe while queued messages are written."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.write_queued)
            data = b"".join([await read(reader, size) for size in sizes])
            await writer.room()
            await writer.drain()
            tasks.cancel_scope.cancel()
    return data


async def test_the_queue_of_a_full_pipe_is_bounded_and_in_order(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1])
    direct = DirectDispatcher(writer)
    writer.put(b"one\n")
    writer.put(b"two\n")
    assert os.read(pipe[0], 100) == b"one\ntwo\n", "written at once"
    writer.put(b"a" * MORE_THAN_A_PIPE)
    for _ in range(MAX_QUEUED - 1):
        writer.put(b"note\n")
    with anyio.move_on_after(0) as scope:
        await writer.room()
    assert scope.cancelled_caught
    with anyio.move_on_after(0):
        await direct.request("tools/call", b"{}")
    data = await flush(writer, pipe[0], MORE_THAN_A_PIPE + 5 * (MAX_QUEUED - 1))
    assert data == b"a" * MORE_THAN_A_PIPE + b"note\n" * (MAX_QUEUED - 1)
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)


async def test_a_call_is_cancelled_past_a_full_queue(pipe: tuple[int, int]) -> None:
    """It may be the one that the server is busy with, and so does not read."""
    writer = LineWriter(pipe[1])
    direct = DirectDispatcher(writer)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as calls:
                calls.start_soon(direct.request, "tools/call", b'{"name":"a"}')
                await anyio.wait_readable(pipe[0])
                asked = os.read(pipe[0], 1000)
                writer.put(b"a" * MORE_THAN_A_PIPE)
                while not writer.full:
                    writer.put(b"b\n")
                calls.cancel_scope.cancel()
            with pytest.raises(TimeoutError):
                # It has no room, and so nothing to be cancelled.
                await direct.request("tools/call", b'{"name":"late"}', 0.01)
            tasks.start_soon(writer.write_queued)
            data = await read(pipe[0], MORE_THAN_A_PIPE + 2 * (MAX_QUEUED - 1))
            data += await read(pipe[0], 50)
            tasks.cancel_scope.cancel()
    assert asked.count(b"tools/call") == 1
    assert b"notifications/cancelled" in data
    assert b"late" not in data


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (b'{"jsonrpc":"2.0","id":1000000000,"result":{"a":1}}', True),
        (b'{"jsonrpc":"2.0","id":"1000000000","result":{"a":1}}', True),
        (b'{"jsonrpc":"2.0","id":1000000000,"method":"ping"}', False),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', False),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', False),
        (b'{"jsonrpc":"1.0","id":1000000000,"result":{}}', False),
        (b'{"id":1000000000', False),
        (b"[]", False),
    ],
)
async def test_only_plain_answers_are_read(pipe: tuple[int, int], line: bytes, taken: bool) -> None:
    direct = DirectDispatcher(LineWriter(pipe[1]))
    got: list[object] = []

    async def ask() -> None:
        got.append(await direct.request("tools/call", b"{}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_readable(pipe[0])
        assert direct.deliver(parse_response(line)) is taken
        if not taken:
            tasks.cancel_scope.cancel()
    assert got == ([{"a": 1}] if taken else [])
