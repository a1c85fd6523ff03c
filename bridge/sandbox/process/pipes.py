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
        self._rested = True
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        # Both outputs behind one descriptor: to wait for two would take two tasks each time.
        self._either = select.epoll() if hasattr(select, "epoll") else None
        if self._either is not None:
            for descriptor in (stdout, stderr):
                self._either.register(descriptor, select.EPOLLIN)

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
        while True:
            if not self._rested:
                # A flood must not keep the event loop from other tasks.
                await anyio.lowlevel.checkpoint()
            self._rested = False
            try:
                data = read_now(self._stdout)
            except OSError as error:
                message = f"The sandbox's output cannot be read: {error.strerror}."
                raise ChannelClosedError(message) from error
            if data is not None:
                if not data:
                    self._drain()
                return data
            self._drain()
            await self._output()
            self._rested = True

    def close(self) -> None:
        """Let go of all three; whoever waits on them is told. Idempotent."""
        for descriptor in (self._stdin, self._stdout, self._stderr):
            if descriptor != _CLOSED:
                with suppress(OSError, ValueError):
                    anyio.notify_closing(descriptor)
                os.close(descriptor)
        if self._either is not None:
            with suppress(OSError, ValueError):
                anyio.notify_closing(self._either)
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
            self._stderr_open = bool(data)
            if not data and self._either is not None:
                with suppress(OSError, ValueError):
                    self._either.unregister(self._stderr)
            self._tail = (self._tail + data)[-DIAGNOSTIC_BYTES:]

    async def _output(self) -> None:
        """Wait until either stream has something, or ends."""

        async def first(descriptor: int) -> None:
            await wait_ready(anyio.wait_readable, descriptor)
            group.cancel_scope.cancel()

        if self._either is not None and not self._either.closed:
            await wait_ready(anyio.wait_readable, self._either)
            return
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
