"""A sandbox's byte stream as frames.

Owns framing, the order of writes and the size caps. Knows nothing of runs or of what frames mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from bridge.aside import aside
from bridge.guest.wire import (
    MAX_VALUES,
    FrameTooLargeError,
    GuestFrame,
    HostFrame,
    LineDecoder,
    Run,
    count_values,
    decode_guest_frame,
)
from bridge.rpc.pieces import in_pieces

MAX_GUEST_FRAME_BYTES = 16 * 1024 * 1024
"""Longest line accepted from a guest."""

BYTES_PER_VALUE = 160
"""What an object in an object takes in memory beside its text, the most of all values."""

BYTES_PER_CHARACTER = 4
"""What each character of a text takes when one of them lies beyond Unicode's first plane."""

MAX_DONE_BYTES = 2 * 1024 * 1024
"""Longest `done` frame: what it holds goes to the model. The guest keeps a result to 1 MiB and a
traceback to 24,000 characters; code that forges the frame does not."""

MAX_SHORT_BYTES = 2 * 1024 * 1024
"""Longest frame of any other type but those of `_LONG`. An honest `output` holds 320 KiB at most,
each byte of it six characters; parts of files and of states are shorter."""

_LONG = (b'{"type":"call",', b'{"type":"shown",')
"""How frames begin that hold what a program has made, whole: arguments, and pictures."""

OTHER_VALUES = 10_000
"""What a `done` frame may hold beside the value of the last expression, which has no more values
than bytes. Of 40 variables and what a session has lost each has some."""

WRITE_BYTES = 256 * 1024
"""Frames go out in portions, so that a large one does not double in a socket's queue."""


TOGETHER_BYTES = 16 * 1024
"""Longest frame that waits for others; a longer one is worth a write of its own."""


class ByteStream(Protocol):
    """The part of a sandbox that a channel needs."""

    async def send(self, data: bytes) -> None:
        """Write all of `data`."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, empty at the end."""
        ...


@dataclass
class _Batch:
    """Frames that go out together."""

    frames: list[bytes]
    sent: anyio.Event = field(default_factory=anyio.Event)


class Channel:
    """Frames over one sandbox's stdin and stdout.

    One task receives; any number may send.

    Attributes:
        last_cost: Bytes of memory, at most, that the last frame received takes.
    """

    def __init__(
        self, stream: ByteStream, *, max_guest_frame_bytes: int = MAX_GUEST_FRAME_BYTES
    ) -> None:
        self._stream = stream
        self._decoder = LineDecoder(max_guest_frame_bytes)
        self._lines: Iterator[bytes] = iter(())
        self._write_lock = anyio.Lock(fast_acquire=True)
        self._batch: _Batch | None = None
        self._told_bytes = MAX_DONE_BYTES
        self.last_cost = 0

    async def send(self, frame: HostFrame) -> None:
        """Write one frame whole.

        Raises:
            ValueError: A value in the frame is not JSON.
            ChannelClosedError: The sandbox is gone.
        """
        if isinstance(frame, Run):
            # The guest is told, and may not care.
            self._told_bytes = int(frame.limits.get("result_bytes", MAX_DONE_BYTES))
        await self.write(in_pieces(frame))

    async def send_bytes(self, data: bytes) -> None:
        """Write bytes that no other writer's may come between."""
        await self.write((data,))

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write pieces of a frame, between which no other writer's bytes may come."""
        async with self._write_lock:
            # A frame half written would garble the channel for good, but a cancelled writer's run
            # is over: the sandbox dies with it, and nobody writes to this channel again.
            for data in pieces:
                if len(data) <= WRITE_BYTES:
                    await self._stream.send(data)
                    continue
                view = memoryview(data)
                for start in range(0, len(view), WRITE_BYTES):
                    await self._stream.send(bytes(view[start : start + WRITE_BYTES]))

    async def send_together(self, data: bytes) -> None:
        """Write a frame in one go with those that others send at the same moment.

        Costs a turn of the event loop, and saves the other side being woken for each.
        """
        if len(data) > TOGETHER_BYTES:
            await self.send_bytes(data)
        elif self._batch is not None:
            batch = self._batch
            batch.frames.append(data)
            await batch.sent.wait()
        else:
            self._batch = batch = _Batch(frames=[data])
            try:
                # Whoever else is ready has its turn before this task has its next.
                await anyio.lowlevel.checkpoint()
                self._batch = None
                await self.send_bytes(b"".join(batch.frames))
            finally:
                # A writer is cancelled only with its run, and all the others with it.
                if self._batch is batch:
                    self._batch = None
                batch.sent.set()

    async def receive(self) -> GuestFrame | None:
        """Return the next frame, or None when the stream has ended.

        Raises:
            WireError: The guest sent something that is no frame. Nothing after it is trusted.
            ChannelClosedError: The engine broke the stream.
        """
        while True:
            # Taken one by one, so that the lines ahead of an overlong one are still delivered.
            line = next(self._lines, None)
            if line is not None:
                # A large one is read beside the event loop, and those behind it wait for it.
                read = partial(read_frame, line, self._told_bytes)
                self.last_cost, frame = await aside(line, read)
                return frame
            data = await self._stream.receive()
            if not data:
                return None
            self._lines = self._decoder.feed(data)


def read_frame(line: bytes, told_bytes: int = MAX_DONE_BYTES) -> tuple[int, GuestFrame]:
    """Return how much memory a line takes once it is parsed, at most, and the frame that it is.

    Raises:
        WireError: It is none, or not worth parsing.
    """
    return frame_cost(line, told_bytes), decode_guest_frame(line)


def frame_cost(line: bytes, told_bytes: int = MAX_DONE_BYTES) -> int:
    """Return how much memory a line takes once it is parsed, at most, without parsing it.

    Args:
        told_bytes: Of the value that a `done` frame may hold.

    Raises:
        FrameTooLargeError: It is not worth parsing.
    """
    most = MAX_VALUES
    # A frame whose type does not come first is refused in any case.
    if line.startswith(b'{"type":"done"'):
        most = told_bytes + OTHER_VALUES
        if len(line) > MAX_DONE_BYTES:
            message = f"a done frame is longer than {MAX_DONE_BYTES} bytes"
            raise FrameTooLargeError(message)
    elif len(line) > MAX_SHORT_BYTES and not line.startswith(_LONG):
        message = f"a frame that is neither a call nor shown is longer than {MAX_SHORT_BYTES} bytes"
        raise FrameTooLargeError(message)
    values = count_values(line, most)
    if values > most:
        message = f"a frame of {len(line):,} bytes holds too many values"
        raise FrameTooLargeError(message)
    narrow = line.isascii() and b"\\u" not in line
    return len(line) * (1 if narrow else BYTES_PER_CHARACTER) + BYTES_PER_VALUE * (values + 1)
