"""The bridge's non-blocking ends of a process's stdin, stdout and stderr.

Owns the descriptors and the bounded end of stderr. Nothing is read before `receive`: a flood of
output waits in the kernel's pipes and not in this process.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel

from bridge.descriptor_reader import Reader
from bridge.errors import ChannelClosedError
from bridge.sandbox.process.faults import failed_call

READ_BYTES = 256 * 1024  # Most read at once.

DIAGNOSTIC_BYTES = 16 * 1024
"""The kept end of stderr. A guest writes there only if it dies before it can report."""

_CLOSED = -1

_Descriptor = TypeVar("_Descriptor")


class Pipes:
    """The bridge's ends of three pipes, for one reader and one writer.

    Attributes:
        on_error: Called with all stderr; output then ends only when stderr has ended too. Without
            it the end of stderr is kept.
    """

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self.on_error: Callable[[bytes], None] | None = None
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._tail = b""
        self._stdout_open = self._stderr_open = True
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        self._reader = Reader(stdout, self._take, stderr)

    def diagnostics(self) -> str:
        """Return the end of stderr so far."""
        self._drain()
        return self._tail.decode("utf-8", "backslashreplace")

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view[:READ_BYTES]) :]
            except BlockingIOError:
                await wait_ready(anyio.wait_writable, self._stdin)
            except OSError as error:
                message = f"The sandbox does not read any more: {error.strerror}."
                raise ChannelClosedError(message) from error

    def end_input(self) -> None:
        """Close stdin. Idempotent."""
        self._stdin = _let_go(self._stdin)

    async def end_output(self) -> None:
        """Close stdout, so that the next write fails with SIGPIPE. Idempotent."""
        self._stdout_open = False
        self._reader.forget(self._stdout)
        self._stdout = _let_go(self._stdout)
        await anyio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        try:
            return await self._reader.read()
        except OSError as error:
            message = f"The sandbox's output cannot be read. {failed_call(error)}"
            raise ChannelClosedError(message) from error

    def _take(self) -> bytes | None:
        data = read_now(self._stdout) if self._stdout_open else b""
        if data:
            return data
        self._drain()
        if data is None or self.on_error is None:
            return data
        if self._stdout_open:
            self._stdout_open = False
            self._reader.forget(self._stdout)
        return None if self._stderr_open else b""

    def close(self) -> None:
        """Close all pipes and wake the tasks that wait on them. Idempotent."""
        self._reader.close()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            _let_go(descriptor)
        self._stdin = self._stdout = self._stderr = _CLOSED
        self._stderr_open = False

    def _drain(self) -> None:
        # Bounded by the pipe's size, or by the turns if the writer is faster than this loop.
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
                self._stderr_open = False
                self._reader.forget(self._stderr)
            if self.on_error is not None:
                self.on_error(data)
            else:
                self._tail = (self._tail + data)[-DIAGNOSTIC_BYTES:]


def _let_go(descriptor: int) -> int:
    if descriptor != _CLOSED:
        with suppress(OSError, ValueError):
            anyio.notify_closing(descriptor)
        os.close(descriptor)
    return _CLOSED


def read_now(descriptor: int) -> bytes | None:
    """Return the available bytes; empty at the end, None for none yet."""
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return None


async def wait_ready(
    wait: Callable[[_Descriptor], Awaitable[None]], descriptor: _Descriptor
) -> None:
    """Wait for a descriptor. If it is closed meanwhile, the next read or write raises."""
    with suppress(OSError, ValueError, anyio.ClosedResourceError):
        await wait(descriptor)
