"""A process's stdin, stdout and stderr as this end sees them, without blocking the event loop.

Owns the descriptors and the bounded tail of stderr. Nothing is read ahead of `receive`: what a
program writes waits in the kernel's pipes, so a flood stops there and not in this process.
"""

from __future__ import annotations

import os
import select
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel

from bridge.errors import ChannelClosedError
from bridge.reader import Reader

READ_BYTES = 256 * 1024
"""Most read at once."""

DIAGNOSTIC_BYTES = 16 * 1024
"""Kept of stderr. A guest writes there only when it dies before it can report."""

_CLOSED = -1

_Descriptor = TypeVar("_Descriptor")


class Pipes:
    """This end of three pipes. Not safe for two readers or two writers."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._tail = b""
        self._stderr_open = True
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        # Both outputs behind one descriptor: to wait for two would take two tasks each time.
        self._either = select.epoll() if hasattr(select, "epoll") else None
        if self._either is not None:
            for descriptor in (stdout, stderr):
                self._either.register(descriptor, select.EPOLLIN)
            self._reader = Reader(self._either, self._take)

    @property
    def diagnostics(self) -> str:
        """The end of what was written to stderr so far."""
        self._drain()
        return self._tail.decode("utf-8", "backslashreplace")

    async def send(self, data: bytes) -> None:
        """Write all of `data`; see `Sandbox.send`."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view[:READ_BYTES]) :]
            except BlockingIOError:
                await wait_ready(anyio.wait_writable, self._stdin)
            except OSError as error:
                message = f"The sandbox does not read any more: {error.strerror}."
                raise ChannelClosedError(message) from error

    async def receive(self) -> bytes:
        """Return the next bytes of stdout; see `Sandbox.receive`."""
        try:
            if self._either is None:
                return await self._receive_from_two()
            return await self._reader.read()
        except OSError as error:
            message = f"The sandbox's output cannot be read: {error.strerror}."
            raise ChannelClosedError(message) from error

    async def _receive_from_two(self) -> bytes:
        while True:
            # A flood must not keep the event loop from other tasks.
            await anyio.lowlevel.checkpoint()
            data = self._take()
            if data is not None:
                return data
            await self._output()

    def _take(self) -> bytes | None:
        data = read_now(self._stdout)
        if not data:
            self._drain()
        return data

    def close(self) -> None:
        """Let go of all three; whoever waits on them is told. Idempotent."""
        if self._either is not None:
            self._reader.close()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            if descriptor != _CLOSED:
                with suppress(OSError, ValueError):
                    anyio.notify_closing(descriptor)
                os.close(descriptor)
        if self._either is not None:
            self._either.close()
        self._stdin = self._stdout = self._stderr = _CLOSED
        self._stderr_open = False

    def _drain(self) -> None:
        # Bounded by what the pipe holds, unless the writer is faster than we are: then by turns.
        for _ in range(16):
            if not self._stderr_open:
                return
            try:
                data = read_now(self._stderr)
            except OSError:
                data = b""
            if data is None:
                return
            if not data:
                self._end_stderr()
            self._tail = (self._tail + data)[-DIAGNOSTIC_BYTES:]

    def _end_stderr(self) -> None:
        self._stderr_open = False
        if self._either is not None:
            # Its end would be reported again and again.
            with suppress(OSError, ValueError):
                self._either.unregister(self._stderr)

    async def _output(self) -> None:
        """Wait until either stream has something, or ends."""

        async def first(descriptor: int) -> None:
            await wait_ready(anyio.wait_readable, descriptor)
            group.cancel_scope.cancel()

        if not self._stderr_open:
            await wait_ready(anyio.wait_readable, self._stdout)
            return
        async with anyio.create_task_group() as group:
            group.start_soon(first, self._stdout)
            group.start_soon(first, self._stderr)


def read_now(descriptor: int) -> bytes | None:
    """Return what is there, empty at the end, None when nothing is there yet."""
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return None


async def wait_ready(
    wait: Callable[[_Descriptor], Awaitable[None]], descriptor: _Descriptor
) -> None:
    """Wait; a descriptor that was closed meanwhile is for the next read or write to find."""
    with suppress(OSError, ValueError, anyio.ClosedResourceError):
        await wait(descriptor)
