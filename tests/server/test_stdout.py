"""What the bridge writes to its client, on pipes of the tests' own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification

from bridge.server.stdio import StdoutMessages

PATIENCE = 120
LARGE = 300_000
"""Several times what a pipe holds."""


def message(name: str, size: int = 0) -> SessionMessage:
    """Return a message that can be told from others, of at least `size` bytes."""
    params = {"filler": "x" * size}
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=name, params=params))


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


async def lines(fd: int, count: int) -> list[str]:
    """Return the methods of the next `count` lines, each of which has to be a message."""
    data = b""
    while data.count(b"\n") < count:
        await anyio.wait_readable(fd)
        data += os.read(fd, 65536)
    return [json.loads(line)["method"] for line in data.splitlines()]


async def test_a_small_message_is_in_the_pipe_when_send_returns() -> None:
    with pipe() as (reading, writing):
        await StdoutMessages(writing, anyio.CancelScope()).send(message("one"))
        assert json.loads(os.read(reading, 65536))["method"] == "one"


async def test_large_messages_of_two_senders_come_whole_and_one_after_the_other() -> None:
    with pipe() as (reading, writing), anyio.fail_after(PATIENCE):
        writer = StdoutMessages(writing, anyio.CancelScope())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("one", LARGE))
            tasks.start_soon(writer.send, message("two", LARGE))
            assert sorted(await lines(reading, 2)) == ["one", "two"]


async def test_what_a_cancelled_sender_left_goes_out_before_the_next_message() -> None:
    with pipe() as (reading, writing), anyio.fail_after(PATIENCE):
        writer = StdoutMessages(writing, anyio.CancelScope())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("one", LARGE))
            await anyio.wait_readable(reading)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("two"))
            assert await lines(reading, 2) == ["one", "two"]


async def test_a_client_that_has_gone_ends_the_session_and_the_reason_is_kept() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    over = anyio.CancelScope()
    writer = StdoutMessages(writing, over)
    for _ in range(2):
        with pytest.raises(anyio.ClosedResourceError):
            await writer.send(message("one"))
    os.close(writing)
    assert over.cancel_called
    assert isinstance(writer.failure, BrokenPipeError)


def test_what_is_printed_meanwhile_goes_to_stderr() -> None:
    """By us, a library or a process that we start; before and after it goes where it should."""
    program = """
import os, subprocess
from bridge.server.stdio import claimed_stdout
print("before")
with claimed_stdout() as fd:
    print("inside")
    subprocess.run(["echo", "child"])
    os.write(fd, b"message\\n")
print("after")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"before\nmessage\nafter\n"
    assert sorted(done.stderr.split()) == [b"child", b"inside"]
