"""Reads descriptors with one registration at the event loop, such as a process's pipes.

A registration for each read costs as much as all other work for a small message. The loop's
callback reads a descriptor only while a task waits, so a flood of output stays in the kernel.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio.lowlevel

from bridge.errors import ChannelClosedError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Reader:
    """A reader of one descriptor for one task at a time. `close` it before the descriptor.

    Args:
        watched: The descriptor that becomes readable.
        attempt: Reads without blocking. Returns None if no data is available, and empty bytes
            at the end. May raise `OSError`, which `read` raises.
        others: Further descriptors; `attempt` is called if one of them becomes readable.
    """

    def __init__(
        self,
        watched: FileDescriptorLike,
        attempt: Callable[[], bytes | None],
        *others: FileDescriptorLike,
    ) -> None:
        self._watched = [watched, *others]
        self._attempt = attempt
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[bytes | None] | None = None
        self._kept: bytes | None = None
        self._yielded = True
        self._closed = False

    async def read(self) -> bytes:
        """Wait for bytes and return those available; empty at the end.

        Raises:
            OSError: The descriptor cannot be read, or is closed.
        """
        if not self._yielded:
            # A writer that never stops must not block the event loop.
            await anyio.lowlevel.checkpoint()
        self._yielded = False
        data, self._kept = self._kept, None
        while data is None:
            data = self._attempt()
            if data is None:
                if self._closed:
                    raise OSError("it was closed")
                self._yielded = True
                data = await self._wait()
        return data

    def unread(self, data: bytes) -> None:
        """Have the next `read` return these bytes."""
        self._kept = data or None

    def close(self) -> None:
        """Unregister the descriptor. A waiting `read` tries again, then raises. Idempotent."""
        self._closed = True
        self._unwatch()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def forget(self, descriptor: FileDescriptorLike) -> None:
        """Stop watching one descriptor, since its end would be reported repeatedly. Idempotent."""
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            if self._loop is not None:
                self._loop.remove_reader(descriptor)

    async def _wait(self) -> bytes | None:
        """Return the bytes that arrived, or None if the caller must read again."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            # First, so that `close` unregisters all, even if one cannot be registered.
            self._loop = loop
            for descriptor in self._watched:
                loop.add_reader(descriptor, self._readable)
        waiting: asyncio.Future[bytes | None] = loop.create_future()
        self._waiting = waiting
        try:
            return await waiting
        except anyio.get_cancelled_exc_class():
            # The callback may have read data for the cancelled task: keep it for the next `read`.
            if not waiting.cancelled() and waiting.exception() is None:
                self._kept = waiting.result()
            raise
        finally:
            self._waiting = None

    def _readable(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            self._unwatch()
            return
        try:
            data = self._attempt()
        except OSError as error:
            waiting.set_exception(error)
        else:
            # `attempt` may have cancelled the task that waits.
            if data is not None and not waiting.done():
                waiting.set_result(data)

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for descriptor in self._watched:
            with suppress(OSError, ValueError, RuntimeError):
                loop.remove_reader(descriptor)


def input_of(fd: int) -> Reader:
    """Return a reader of a descriptor that may block."""
    return Reader(fd, partial(_read_available, fd))


def is_ready(fd: int, event: int, milliseconds: int | None = 0) -> bool:
    """Return whether an event of `select.poll` comes in time. `select` takes few descriptors."""
    waiting = select.poll()
    waiting.register(fd, event)
    return bool(waiting.poll(milliseconds))


def _read_available(fd: int) -> bytes | None:
    """Return the available bytes, even of a descriptor that may block; None for none yet.

    Regular files and the null device, which no event loop can watch, are always readable.
    """
    if not is_ready(fd, select.POLLIN):
        return None
    with suppress(BlockingIOError):
        return os.read(fd, 64 * 1024)  # The capacity of a pipe.
    return None


READ_BYTES = 256 * 1024  # Most read at once.

DIAGNOSTIC_BYTES = 16 * 1024
"""The kept end of stderr. A guest writes there only if it dies before it can report."""

_CLOSED = -1

_Descriptor = TypeVar("_Descriptor")


class Pipes:
    """The bridge's ends of three pipes, for one reader and one writer."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        # Called with all stderr; output then ends only when stderr has ended too. Without it, the
        # end of stderr is kept.
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
        self._stdin = let_go(self._stdin)

    async def end_output(self) -> None:
        """Close stdout, so that the next write fails with SIGPIPE. Idempotent."""
        self._stdout_open = False
        self._reader.forget(self._stdout)
        self._stdout = let_go(self._stdout)
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
            let_go(descriptor)
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


def let_go(descriptor: int) -> int:
    """Close a descriptor that tasks may wait for; return the number of a closed one."""
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


_COUNTERS: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("epoll watches of this user", "/proc/sys/fs/epoll/max_user_watches"),
    errno.EMFILE: ("open files of the bridge", "/proc/self/limits"),
    errno.ENFILE: ("open files of this machine", "/proc/sys/fs/file-max"),
}


def failed_call(error: OSError) -> str:
    """Explain in a sentence why the kernel refused a call, with the exhausted counter."""
    what, file = _COUNTERS.get(error.errno or 0, ("", ""))
    if not what:
        return f"{error.strerror or error}."
    try:
        value = Path(file).read_text(encoding="ascii")
    except OSError:
        value = "unknown"
    row = re.search(r"^Max open files\s+(\d+)", value, re.MULTILINE)
    return f"There are too many {what}: the limit is {row[1] if row else value.strip()}."
