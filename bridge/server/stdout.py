"""Messages to one client as lines on stdout.

Owns the claim on descriptor 1 and the order of lines: whole ones, one after the other, whoever
sends. Who has sent a message knows that it is in the pipe. The SDK's own writer hands each message
to a task and from there twice to a thread, which costs as much as the rest of a small answer.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage

from bridge.server.batches import OpenBatches
from bridge.upstream.framing import encode

PIECE_BYTES = select.PIPE_BUF
"""Written at once: as much as a pipe that says it is ready takes without blocking."""

PIECES_AT_A_TIME = 64
"""Written before other tasks have a turn: a quarter of a megabyte, well under a millisecond."""


class StdoutMessages:
    """A write stream for the SDK's server, over a descriptor that may block.

    Args:
        over: Cancelled when the client cannot be written to any more; `failure` says why. To most
            senders that is nothing, since their request has nobody to answer to.

    Attributes:
        batches: Those whose answers are collected, to go out together.
    """

    def __init__(self, fd: int, over: anyio.CancelScope) -> None:
        self._fd = fd
        self._over = over
        # One writer is the rule, and then there is nothing to wait for.
        self._lock = anyio.Lock(fast_acquire=True)
        self._rest = memoryview(b"")
        self._closed = False
        self.batches = OpenBatches()
        self.failure: OSError | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message whole; an answer to a batch goes out with the others.

        Cancelled half-way, the rest of it goes out before the next one.

        Raises:
            ClosedResourceError: Nobody is left to write to.
        """
        together = self.batches.take(item.message)
        if together is None:
            await self._write(encode(item.message))
        else:
            await self.send_batch(together)

    async def send_batch(self, messages: Sequence[JSONRPCMessage]) -> None:
        """Write messages as one array; nothing if there are none.

        Raises:
            ClosedResourceError: Nobody is left to write to.
        """
        if messages:
            await self._write(f"[{','.join(map(encode, messages))}]")

    async def _write(self, text: str) -> None:
        async with self._lock:
            await self._write_rest()
            self._rest = memoryview(text.encode() + b"\n")
            await self._write_rest()

    async def _write_rest(self) -> None:
        written = 0
        while self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if not select.select((), (self._fd,), (), 0)[1]:
                await anyio.wait_writable(self._fd)
            elif written == PIECES_AT_A_TIME:
                await anyio.lowlevel.checkpoint()
                written = 0
            else:
                self._write_piece()
                written += 1

    def _write_piece(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest[:PIECE_BYTES]) :]
        except BlockingIOError:
            # Another holder of the pipe has made it so, and was quicker; it is waited for.
            return
        except OSError as error:
            self.failure = self.failure or error
            self._closed = True
            self._over.cancel()
            raise anyio.ClosedResourceError from error

    async def aclose(self) -> None:
        """Take no more messages. The descriptor is its claimant's."""
        self._closed = True
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        self._closed = True
        return None


@contextmanager
def claimed_stdout() -> Iterator[int]:
    """Yield a private descriptor of stdout; meanwhile descriptor 1 leads to stderr.

    What the bridge starts, or a library prints, must not come between the messages.
    """
    _flush()
    private = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        try:
            os.dup2(2, 1)
        except OSError:
            # There is no stderr.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
        yield private
    finally:
        _flush()
        os.dup2(private, 1)
        os.close(private)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
