"""A descriptor is read repeatedly: no bytes are lost, and none are read unless a task waits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from bridge.descriptor_reader import Reader
from tests.waiting import PATIENCE_SECONDS


class Pipe:
    """A pipe and its reader. `attempt` replaces the reading."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.attempts = 0
        self.attempt: Callable[[], bytes | None] = self._read
        self.on_data: Callable[[], object] = lambda: None
        self.reader = Reader(self.source, lambda: self.attempt())

    def _read(self) -> bytes | None:
        self.attempts += 1
        try:
            data = os.read(self.source, 100)
        except BlockingIOError:
            return None
        self.on_data()
        return data

    def end(self) -> None:
        os.close(self.sink)
        self.sink = -1

    async def expect_error(self, match: str) -> None:
        with pytest.raises(OSError, match=match):
            await self.reader.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.reader.close()
    os.close(made.source)
    if made.sink >= 0:
        made.end()


@asynccontextmanager
async def waiting(read: Callable[..., Any], *args: object) -> AsyncIterator[TaskGroup]:
    """Start a task that reads, and continue once it waits."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, *args)
            await anyio.wait_all_tasks_blocked()
            yield tasks


async def test_what_comes_is_read_until_its_end(pipe: Pipe) -> None:
    os.write(pipe.sink, b"at once")
    got = []

    async def read() -> None:
        while data := await pipe.reader.read():
            got.append(data)

    async with waiting(read):
        for word in (b"then", b"last"):
            os.write(pipe.sink, word)
            await anyio.wait_all_tasks_blocked()
        pipe.end()
    assert await pipe.reader.read() == b""
    assert b"".join(got) == b"at oncethenlast"


async def test_a_cancelled_wait_loses_nothing(pipe: Pipe) -> None:
    async with waiting(pipe.reader.read) as tasks:
        tasks.cancel_scope.cancel()
    os.write(pipe.sink, b"x")
    with anyio.fail_after(PATIENCE_SECONDS):
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


async def test_nothing_is_read_unless_a_task_waits(pipe: Pipe) -> None:
    async with waiting(pipe.reader.read):
        os.write(pipe.sink, b"one")
    attempts = pipe.attempts
    os.write(pipe.sink, b"two")
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert pipe.attempts == attempts
    assert await pipe.reader.read() == b"two"


async def test_closing_wakes_who_waits(pipe: Pipe) -> None:
    async with waiting(pipe.expect_error, "closed"):
        pipe.reader.close()


async def test_a_descriptor_that_fails_fails_who_waits(pipe: Pipe) -> None:
    def fail() -> bytes | None:
        message = "broken"
        raise OSError(message)

    async with waiting(pipe.expect_error, "broken"):
        pipe.attempt = fail
        os.write(pipe.sink, b"x")


async def test_a_writer_that_never_stops_leaves_other_tasks_their_turn(pipe: Pipe) -> None:
    pipe.attempt = lambda: b"more"
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(100):
            await pipe.reader.read()
        tasks.cancel_scope.cancel()
    assert turns >= 90
