"""Reads one descriptor repeatedly, without registering it at the event loop for each read.

The descriptor stays registered, and is read in the loop's own callback: registering it for every
wait costs as much as all other work for a small message. Nothing is read before a task waits.
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
    """Reads one descriptor for one task at a time. `close` it before the descriptor.

    Args:
        watched: What becomes readable.
        attempt: Reads without waiting: None for nothing yet, empty for the end. May raise an
            `OSError`, which `read` raises.
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
        """Return the available bytes, after waiting for some; empty at the end.

        Raises:
            OSError: It cannot be read, or was closed.
        """
        if not self._yielded:
            # A writer that never stops must not keep the event loop from other tasks.
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
        """Unregister the descriptor; a waiting `read` tries once more, and raises. Idempotent."""
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
        """Return the bytes that arrived, or None if it must be tried again."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            for descriptor in self._watched:
                loop.add_reader(descriptor, self._readable)
            self._loop = loop
        waiting: asyncio.Future[bytes | None] = loop.create_future()
        self._waiting = waiting
        try:
            return await waiting
        except anyio.get_cancelled_exc_class():
            # Read already, and not lost with whom it was read for; an error comes up again.
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
