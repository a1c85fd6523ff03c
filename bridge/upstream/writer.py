"""Whole messages into a pipe, each at once if the pipe takes it.

Owns their order and what a pipe did not take yet. A message is written by whoever sends it, without
a hand-over to another task; only the rest of one, when the pipe is full, is left to a task that
outlives the sender, since a message cut short would garble all that follow.
"""

from __future__ import annotations

import os
from collections import deque

import anyio

MAX_QUEUED = 16
"""Messages waiting for a reader that does not read, before the next has to wait. Cancellations do
not: there are no more of them than of the calls that had room."""

TOGETHER_BYTES = 16 * 1024
"""Longest message that waits for others; a longer one is worth a write of its own."""

_WRITE_BYTES = 256 * 1024
"""Offered to the kernel at once, so that a large message is not copied over and over."""


class LineWriter:
    """Messages to one non-blocking descriptor. `run` has to run meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[memoryview] = deque()
        self._together: list[bytes] = []
        self._left_over = anyio.Event()
        self._changed = anyio.Event()
        self._turns: deque[anyio.Event] = deque()
        self._broken = False

    @property
    def broken(self) -> bool:
        """Whether nobody reads any more, or `run` has ended."""
        return self._broken

    @property
    def full(self) -> bool:
        """Whether a message has to wait for `room`."""
        return len(self._queue) >= MAX_QUEUED and not self._broken

    async def room(self) -> None:
        """Wait until a message may be put."""
        while self.full:
            turn = anyio.Event()
            self._turns.append(turn)
            try:
                await turn.wait()
            except anyio.get_cancelled_exc_class():
                if turn in self._turns:
                    self._turns.remove(turn)
                else:
                    # It was this one's turn, which it leaves to the next.
                    self._give_turns()
                raise

    def put(self, data: bytes) -> None:
        """Write a message, or queue what the pipe does not take.

        Wait for `room` first, without anything in between; a cancellation, of which there is one
        for a request that had room, need not.
        """
        if self._broken:
            return
        if self._together:
            data = b"".join((*self._together, data))
            self._together.clear()
        if self._queue:
            self._queue.append(memoryview(data))
            return
        try:
            written = os.write(self._fd, data if len(data) <= _WRITE_BYTES else data[:_WRITE_BYTES])
        except BlockingIOError:
            written = 0
        except OSError:
            # `run` meets the same error, and says so to whom it concerns.
            written = 0
        if written < len(data):
            self._queue.append(memoryview(data)[written:])
            self._left_over.set()

    def put_together(self, data: bytes) -> None:
        """Like `put`, but in one go with what others put at the same moment.

        Costs a turn of the event loop, and saves the reader being woken for each.
        """
        if self._broken or self._queue or len(data) > TOGETHER_BYTES:
            self.put(data)
            return
        self._together.append(data)
        self._left_over.set()

    async def drained(self) -> None:
        """Wait until nothing is queued."""
        while (self._queue or self._together) and not self._broken:
            await self._changed.wait()

    async def run(self) -> None:
        """Write what was left over, for as long as messages may come.

        Raises:
            OSError: Nobody reads any more.
        """
        try:
            while True:
                await self._left_over.wait()
                self._left_over = anyio.Event()
                if self._together:
                    self.put(b"")
                    self._tell()
                while self._queue:
                    await self._write_first()
        finally:
            self._broken = True
            self._queue.clear()
            self._together.clear()
            self._tell()

    async def _write_first(self) -> None:
        view = self._queue[0]
        try:
            written = os.write(self._fd, view[:_WRITE_BYTES])
        except BlockingIOError:
            await anyio.wait_writable(self._fd)
            return
        if written < len(view):
            self._queue[0] = view[written:]
            return
        self._queue.popleft()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._give_turns()

    def _give_turns(self) -> None:
        """Wake as many as there is room for: were all woken, most would only wait again."""
        room = len(self._turns) if self._broken else MAX_QUEUED - len(self._queue)
        for _ in range(min(room, len(self._turns))):
            self._turns.popleft().set()
