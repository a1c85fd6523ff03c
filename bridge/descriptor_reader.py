"""Reads a descriptor repeatedly with one registration at the event loop.

A registration for each read costs as much as all other work for a small message. The loop's
callback reads the descriptor, but only while a task waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

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
            if data is not None:
                waiting.set_result(data)

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for descriptor in self._watched:
            with suppress(OSError, ValueError, RuntimeError):
                loop.remove_reader(descriptor)
