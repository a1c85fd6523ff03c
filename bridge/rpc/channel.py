"""A sandbox's byte stream as frames.

Owns framing, the order of writes, the size caps, and how large texts and files travel. Knows
nothing of what frames mean.
"""

from __future__ import annotations

import base64
import io
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from bridge.guest.protocol.wire import (
    MAX_VALUES,
    FrameTooLargeError,
    GuestFrame,
    HostFrame,
    LineDecoder,
    Reply,
    Run,
    count_values,
    decode_guest_frame,
    encode,
)
from bridge.model import Json
from bridge.offload import offload

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
                self.last_cost, frame = await offload(line, read)
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
            raise FrameTooLargeError(f"a done frame is longer than {MAX_DONE_BYTES} bytes")
    elif len(line) > MAX_SHORT_BYTES and not line.startswith(_LONG):
        message = f"a frame that is neither a call nor shown is longer than {MAX_SHORT_BYTES} bytes"
        raise FrameTooLargeError(message)
    values = count_values(line, most)
    if values > most:
        raise FrameTooLargeError(f"a frame of {len(line):,} bytes holds too many values")
    narrow = line.isascii() and b"\\u" not in line
    return len(line) * (1 if narrow else BYTES_PER_CHARACTER) + BYTES_PER_VALUE * (values + 1)


# --- a run's frame with megabytes in it, made while it goes out -----------------------------------
#
# To make JSON of 40 MB of base64 in one go takes half a second, in which nothing else of the bridge
# runs, in whatever thread it is done.

LARGE_BYTES = 64 * 1024
"""From here on bytes go out in pieces; less is made in less than a millisecond."""

PIECE_BYTES = 189 * 1024
"""Made and written together; a multiple of three, so that no piece but the last is padded."""


class LargeBase64(str):
    """Stands in a frame for bytes that become base64 as it goes out."""

    __slots__ = ("data",)
    data: bytes

    def __new__(cls, data: bytes) -> LargeBase64:
        """Make one, whose text nobody can have put anywhere else in the frame."""
        made = super().__new__(cls, secrets.token_hex(16))
        made.data = data
        return made


def as_base64(data: bytes) -> str:
    """Return bytes for a frame that `in_pieces` makes."""
    if len(data) < LARGE_BYTES:
        return base64.b64encode(data).decode("ascii")
    return LargeBase64(data)


def in_pieces(frame: HostFrame) -> Iterator[bytes]:
    """Return a frame's line.

    Raises:
        ValueError, TypeError: It is no JSON, of which nothing has gone out then.
    """
    line, large = encode(frame), _large(frame)
    return _spliced(line, large) if large else iter((line,))


def _spliced(line: bytes, texts: list[LargeBase64]) -> Iterator[bytes]:
    start = 0
    for place, large in sorted((line.index(text.encode()), text) for text in texts):
        yield line[start:place]
        for at in range(0, len(large.data), PIECE_BYTES):
            yield base64.b64encode(large.data[at : at + PIECE_BYTES])
        start = place + len(large)
    yield line[start:]


def _large(frame: HostFrame) -> list[LargeBase64]:
    if not isinstance(frame, Run):
        return []
    texts = [frame.state, *(file["data"] for file in frame.files)]
    return [text for text in texts if isinstance(text, LargeBase64)]


# --- replies, with large texts beside the JSON instead of inside it -------------------------------
#
# To write a text as JSON and to read it again costs several times what it costs to move it, and
# copies of it. What the program gets is the same. The other end is `bridge.guest.api.client`.

LARGE_CHARACTERS = 64 * 1024
"""From here on a text is worth it."""

DEPTH = 3
"""How deep inside objects large texts are looked for: the text itself, a field of structured
content, the data of a blob. What lies deeper is in JSON."""

_PORTION = 1024 * 1024
"""Characters made into bytes at a time, so that a text is in memory once more and not twice."""


class ClearStream(Protocol):
    """Takes it out of a text that comes in pieces."""

    def feed(self, data: bytes) -> bytes:
        """Return what is certain so far."""

    def finish(self) -> bytes:
        """Return what was held back, when nothing follows."""


class Clear(Protocol):
    """Takes out of replies what must not enter a sandbox; see `bridge.gate.redaction`."""

    def text(self, text: str) -> str:
        """Return a text without it."""

    def frame(self, line: bytes) -> bytes:
        """Return a line of JSON without it."""

    def stream(self) -> ClearStream:
        """Return what clears a text that comes in pieces."""


def encode_reply(call_id: int, value: Json, clear: Clear | None = None) -> bytes:
    """Return the reply that gives `value`, without what `clear` takes out.

    Raises:
        ValueError: `value` is not JSON: NaN, an infinity, a cycle, too deep.
        TypeError: It holds something of a type that JSON does not have.
    """
    texts: list[tuple[Sequence[str], str]] = []
    rest = _without_large(value, (), texts)
    if texts:
        try:
            return _beside(call_id, rest, texts, clear)
        except UnicodeEncodeError:
            # A lone surrogate has no bytes, but JSON can escape it.
            texts.clear()
    line = encode(Reply(id=call_id, value=value))
    return line if clear is None else clear.frame(line)


def _beside(
    call_id: int, rest: Json, texts: list[tuple[Sequence[str], str]], clear: Clear | None
) -> bytes:
    data = io.BytesIO()
    for _, told in texts:
        # Before anything is counted: what stands in the place of a secret has another length.
        text = told if clear is None else clear.text(told)
        size = len(text) if text.isascii() else sum(len(p.encode()) for p in _portions(text))
        data.write(b"+%d\n" % size)
        for portion in _portions(text):
            data.write(portion.encode())
    value: Json = {"rest": rest, "texts": [list(path) for path, _ in texts]}
    line = encode(Reply(id=call_id, value=value))
    # Names of fields stand in it twice, and lose the same both times.
    data.write(line if clear is None else clear.frame(line))
    # Nothing is copied here: the buffer itself becomes the bytes.
    return data.getvalue()


def _portions(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PORTION):
        yield text[start : start + _PORTION]


def _without_large(
    value: Json, path: tuple[str, ...], texts: list[tuple[Sequence[str], str]]
) -> Json:
    if isinstance(value, str) and len(value) >= LARGE_CHARACTERS and path:
        texts.append((path, value))
        return None
    if isinstance(value, dict) and len(path) < DEPTH:
        return {
            key: _without_large(item, (*path, key), texts)
            if isinstance(item, (str, dict)) and isinstance(key, str)
            else item
            for key, item in value.items()
        }
    return value
