"""This end of a process's pipes."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Iterator

import anyio
import pytest

from bridge.descriptor_reader import Pipes, Reader, wait_ready
from bridge.errors import ChannelClosedError
from tests.waiting import PATIENCE_SECONDS


class Drains(Pipes):
    drains = 0

    def _drain(self) -> None:
        self.drains += 1
        super()._drain()


@pytest.fixture
def ends() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    yield made
    for descriptor in (made[0][0], made[1][1], made[2][1]):
        if descriptor >= 0:
            os.close(descriptor)


async def test_a_process_that_closes_its_stderr_is_not_read_again(
    ends: list[tuple[int, int]],
) -> None:
    """A descriptor's end is reported for as long as it is watched, and would keep a core busy."""
    pipes = Drains(ends[0][1], ends[1][0], ends[2][0])
    said: list[bytes] = []
    pipes.on_error = said.append
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipes.receive)
            await anyio.wait_all_tasks_blocked()
            os.write(ends[2][1], b"oops")
            os.close(ends[2][1])
            ends[2] = (ends[2][0], -1)
            while said != [b"oops", b""]:
                await anyio.lowlevel.checkpoint()
            before = pipes.drains
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert pipes.drains <= before + 1
            # Output that no task awaits ends the watch; the next wait begins it again.
            for data in (b"more", b"unread"):
                os.write(ends[1][1], data)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
            assert await pipes.receive() == b"unread"
            tasks.start_soon(pipes.receive)
            await anyio.wait_all_tasks_blocked()
            before = pipes.drains
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert pipes.drains <= before + 1
            os.write(ends[1][1], b"end")
    pipes.close()


async def test_closing_tells_who_waits_for_output(ends: list[tuple[int, int]]) -> None:
    pipes = Pipes(ends[0][1], ends[1][0], ends[2][0])

    async def receive() -> None:
        with pytest.raises(ChannelClosedError):
            await pipes.receive()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            pipes.close()


@pytest.mark.parametrize("selector", [selectors.DefaultSelector, selectors.SelectSelector])
def test_a_flood_on_stderr_is_read_while_output_is_awaited(
    ends: list[tuple[int, int]], selector: type[selectors.BaseSelector]
) -> None:
    """Also where the event loop has no epoll: a full pipe would block the guest."""

    async def flood() -> None:
        pipes = Pipes(ends[0][1], ends[1][0], ends[2][0])
        os.set_blocking(ends[2][1], False)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pipes.receive)
                for number in range(64):
                    await wait_ready(anyio.wait_writable, ends[2][1])
                    os.write(ends[2][1], str(number % 10).encode() * 4096)
                os.write(ends[1][1], b"end")
        assert pipes.diagnostics().endswith("3" * 4096)
        pipes.close()

    options = {"loop_factory": lambda: asyncio.SelectorEventLoop(selector())}
    anyio.run(flood, backend_options=options)


async def test_a_reader_of_what_cannot_be_watched_leaves_nothing_at_the_loop(
    ends: list[tuple[int, int]],
) -> None:
    reader = Reader(ends[1][0], lambda: None, null := os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(OSError, match="not permitted"):
        await reader.read()
    reader.close()
    os.close(null)
    assert not asyncio.get_running_loop().remove_reader(ends[1][0])
