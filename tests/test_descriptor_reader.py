"""Waiting for one descriptor again and again: nothing is lost, nothing is read unasked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import anyio
import pytest

from bridge.descriptor_reader import Reader
from tests.waiting import PATIENCE_SECONDS


class Pipe:
    """A pipe and what reads it."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.attempts = 0
        self.on_data: Callable[[], object] = lambda: None
        self.reader = Reader(self.source, self._attempt)

    def _attempt(self) -> bytes | None:
        self.attempts += 1
        try:
            data = os.read(self.source, 100)
        except BlockingIOError:
            return None
        self.on_data()
        return data

    def close(self) -> None:
        self.reader.close()
        for descriptor in (self.source, self.sink):
            if descriptor >= 0:
                os.close(descriptor)
        self.source = self.sink = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


async def test_what_comes_is_read_until_its_end(pipe: Pipe) -> None:
    os.write(pipe.sink, b"at once")
    got = []

    async def read() -> None:
        while data := await pipe.reader.read():
            got.append(data)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for word in (b"then", b"last"):
                await anyio.wait_all_tasks_blocked()
                os.write(pipe.sink, word)
            await anyio.wait_all_tasks_blocked()
            os.close(pipe.sink)
            pipe.sink = -1
        assert await pipe.reader.read() == b""
    assert b"".join(got) == b"at oncethenlast"


async def test_a_cancelled_wait_loses_nothing(pipe: Pipe) -> None:
    scope = anyio.CancelScope()

    async def read() -> None:
        with scope:
            await pipe.reader.read()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
        os.write(pipe.sink, b"x")
        assert await pipe.reader.read() == b"x"


async def test_a_task_cancelled_when_its_bytes_have_come_leaves_them_to_the_next(
    pipe: Pipe,
) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(pipe.reader.read())
    pipe.on_data = lambda: loop.call_soon(task.cancel)
    with anyio.fail_after(PATIENCE_SECONDS):
        await anyio.wait_all_tasks_blocked()
        os.write(pipe.sink, b"kept")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pipe.reader.read() == b"kept"


async def test_nothing_is_read_that_nobody_waits_for(pipe: Pipe) -> None:
    """What a flood can fill is the pipe; and who is busy is not woken for it."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipe.reader.read)
            await anyio.wait_all_tasks_blocked()
            os.write(pipe.sink, b"one")
        attempts = pipe.attempts
        os.write(pipe.sink, b"two")
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert pipe.attempts == attempts
        assert await pipe.reader.read() == b"two"


async def test_closing_wakes_who_waits(pipe: Pipe) -> None:
    async def read() -> None:
        with pytest.raises(OSError, match="closed"):
            await pipe.reader.read()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            pipe.reader.close()


async def test_a_descriptor_that_fails_fails_who_waits() -> None:
    source, sink = os.pipe()
    broken = False

    def attempt() -> bytes | None:
        if broken:
            message = "broken"
            raise OSError(message)
        return None

    reader = Reader(source, attempt)

    async def read() -> None:
        with pytest.raises(OSError, match="broken"):
            await reader.read()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            broken = True
            os.write(sink, b"x")
    reader.close()
    os.close(source)
    os.close(sink)


async def test_a_writer_that_never_stops_leaves_other_tasks_their_turn() -> None:
    source, sink = os.pipe()
    reader = Reader(source, lambda: b"more")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(100):
            await reader.read()
        tasks.cancel_scope.cancel()
    assert turns >= 90
    reader.close()
    os.close(source)
    os.close(sink)
