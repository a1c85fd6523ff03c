"""Frames over a sandbox's byte stream.

It orders writes, bounds sizes, and encodes large texts and files. It does not interpret frames.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import anyio.lowlevel

from bridge.event_loop import LargeText, offload
from bridge.guest.protocol import wire
from bridge.model import Json

MAX_GUEST_FRAME_BYTES = 16 * 1024 * 1024  # Longest line accepted from a guest.

MAX_SHORT_BYTES = 2 * 1024 * 1024  # Longest frame, except of `_LONG`; honest guests send a quarter.

_LONG = (b'{"type":"call",', b'{"type":"shown",')  # Frames with whole values of a program.

WRITE_BYTES = 256 * 1024  # Of one write, so that a socket's queue does not hold a large frame.


class ByteStream(Protocol):
    """The part of a sandbox that a channel uses; at its end `receive` returns empty bytes."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes: ...


class Channel:
    """Frames over one sandbox's stdin and stdout. One task receives; any number may send."""

    def __init__(
        self, stream: ByteStream, *, max_guest_frame_bytes: int = MAX_GUEST_FRAME_BYTES
    ) -> None:
        self._stream = stream
        self._decoder = wire.LineDecoder(max_guest_frame_bytes)
        self._lines: Iterator[bytes] = iter(())
        self._write_lock = anyio.Lock(fast_acquire=True)
        self._unfinished = 0
        # The frames of the current batch, and the event for its end.
        self._batch: list[bytes] = []
        self._sent = anyio.Event()
        self._result_bytes = MAX_SHORT_BYTES
        # Upper bound of the last received frame's memory, in bytes.
        self.last_cost = 0

    async def send(self, frame: wire.HostFrame) -> None:
        """Write one frame whole; raise ChannelClosedError if the sandbox is gone."""
        if isinstance(frame, wire.Run):
            # The guest receives this limit too, but is not trusted.
            self._result_bytes = int(frame.limits.get("result_bytes", MAX_SHORT_BYTES))
        await self.write_now(in_pieces(frame))

    async def write(self, pieces: Sequence[bytes], *, batched: bool = False) -> None:
        """Write the pieces of a frame without interleaving other writers' bytes.

        If `batched`, a short frame is written together with those that other tasks send at the same
        time. That costs one turn of the event loop, and saves waking the guest for each frame.
        """
        if not batched or len(pieces) > 1 or len(pieces[0]) > 16 * 1024:
            await self.write_now(pieces)
            return
        self._batch.append(pieces[0])
        if len(self._batch) > 1:
            await self._sent.wait()
            return
        batch, sent = self._batch, self._sent
        try:
            # Other ready tasks run before this one continues, and add their frames.
            await anyio.lowlevel.checkpoint()
            self._batch, self._sent = [], anyio.Event()
            await self.write_now((b"".join(batch),))
        finally:
            # A writer is cancelled only with its run, and all the others with it.
            sent.set()

    async def write_now(self, pieces: Iterable[bytes]) -> None:
        """Write the pieces of a frame after all earlier frames."""
        self._unfinished += 1
        async with self._write_lock:
            for data in pieces:
                for start in range(0, len(data), WRITE_BYTES):
                    await self._stream.send(data[start : start + WRITE_BYTES])
        self._unfinished -= 1

    @property
    def is_whole(self) -> bool:
        """Whether another frame can follow; after a cancelled write it cannot."""
        return not self._unfinished

    async def receive(self) -> wire.GuestFrame | None:
        """Return the next frame, or None when the stream has ended.

        Raises:
            WireError: The guest sent an invalid frame. Nothing after it is trusted.
        """
        while True:
            # One by one, so that lines before an overlong one are delivered.
            line = next(self._lines, None)
            if line is not None:
                # A thread parses a large text; later frames wait for it.
                return await offload(line[wire.json_start(line) :], partial(self._read, line))
            data = await self._stream.receive()
            if not data:
                return None
            self._lines = self._decoder.feed(data)

    def _read(self, line: bytes) -> wire.GuestFrame:
        self.last_cost = frame_cost(line, self._result_bytes)
        return wire.decode_guest_frame(line)


def frame_cost(line: bytes, result_bytes: int = MAX_SHORT_BYTES) -> int:
    """Return an upper bound of a parsed line's memory in bytes; WireError if that is too much.

    `result_bytes` limits the value of a `done` frame.
    """
    most, size = wire.MAX_VALUES, len(line)
    line = line[wire.json_start(line) :]
    # A frame whose first key is not its type is rejected later in any case.
    if line.startswith(b'{"type":"done"'):
        most = result_bytes + 10_000  # 40 variables and a session's losses take a few each.
    if size > MAX_SHORT_BYTES and not line.startswith(_LONG):
        message = f"a frame that is neither a call nor shown is longer than {MAX_SHORT_BYTES} bytes"
        raise wire.WireError(message)
    values = wire.count_values(line, most)
    if values > most:
        raise wire.WireError(f"a frame of {size:,} bytes holds too many values")
    narrow = line.isascii() and b"\\u" not in line
    # Python needs four bytes for a character if one is beyond the first plane.
    text = len(line) * (1 if narrow else 4)
    # In addition to its text, a value takes no more memory than a nested object.
    return size - len(line) + text + 160 * (values + 1)


# Encoding 40 MB of base64 as JSON at once takes half a second and holds the interpreter lock.

LARGE_BYTES = 64 * 1024  # Least size written in pieces; less is encoded in less than a millisecond.

PIECE_BYTES = 189 * 1024  # A multiple of three, so that only the last piece has padding.


class LargeBase64(str):
    """A random placeholder for large bytes in a frame. The writer replaces it with their base64."""

    __slots__ = ("data",)
    data: bytes

    def __new__(cls, data: bytes) -> LargeBase64:
        made = super().__new__(cls, secrets.token_hex(16))
        made.data = data
        return made


def as_base64(data: bytes) -> str:
    """Return bytes as base64 for a `run` frame, or a placeholder if they are large."""
    if len(data) < LARGE_BYTES:
        return base64.b64encode(data).decode("ascii")
    return LargeBase64(data)


def in_pieces(frame: wire.HostFrame) -> Iterator[bytes]:
    """Return a frame's line in pieces; raise ValueError or TypeError if a value is not JSON."""
    texts: list[str] = []
    if isinstance(frame, wire.Run):
        texts = [frame.state, *(file["data"] for file in frame.files)]
    large = [text for text in texts if isinstance(text, LargeBase64)]
    return _splice(wire.encode(frame), large)


def _splice(line: bytes, texts: list[LargeBase64]) -> Iterator[bytes]:
    start = 0
    for place, large in sorted((line.index(text.encode()), text) for text in texts):
        yield line[start:place]
        for at in range(0, len(large.data), PIECE_BYTES):
            yield base64.b64encode(large.data[at : at + PIECE_BYTES])
        start = place + len(large)
    yield line[start:]


# Encoding a text as JSON and decoding it costs several times as much as moving it, and copies it.
# The program gets the same value. The other end is `bridge.guest.api.client`.

LARGE_CHARACTERS = 64 * 1024  # Least length of a text that is sent outside of the JSON.

DEPTH = 3
"""Depth in objects to which large texts are searched: a text, a field of structured content, a
blob's data. Deeper texts stay in the JSON."""


class RedactStream(Protocol):
    """Redacts a text in pieces; `feed` returns the bytes that later pieces cannot change."""

    def feed(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Redact(Protocol):
    """The interface of `bridge.gate.redaction.Redactor`, for all data that enters a sandbox."""

    def text(self, text: str) -> str: ...

    def frame(self, line: bytes) -> bytes: ...

    def stream(self) -> RedactStream: ...


def encode_reply(call_id: int, value: Json, clear: Redact | None = None) -> Sequence[bytes]:
    """Return the reply in one piece or several; raise ValueError or TypeError if it is not JSON."""
    texts: list[tuple[Sequence[str], str | LargeText]] = []
    rest = _without_large(value, (), texts)
    if texts:
        try:
            return _encode_with_texts(call_id, rest, texts, clear)
        except UnicodeEncodeError:
            # A lone surrogate has no bytes, but JSON can escape it.
            texts.clear()
    line = wire.encode(wire.Reply(id=call_id, value=value))
    return (line if clear is None else clear.frame(line),)


def _encode_with_texts(
    call_id: int,
    rest: Json,
    texts: list[tuple[Sequence[str], str | LargeText]],
    clear: Redact | None,
) -> Sequence[bytes]:
    reply: list[bytes] = []
    for _, told in texts:
        # Redacted first, since that changes the length.
        pieces = _redact_text(told, clear)
        reply += (b"+%d\n" % sum(map(len, pieces)), *pieces)
    value: Json = {"rest": rest, "texts": [list(path) for path, _ in texts]}
    line = wire.encode(wire.Reply(id=call_id, value=value))
    # Field names occur twice in it, with the same redaction.
    reply.append(line if clear is None else clear.frame(line))
    return reply


def _redact_text(told: str | LargeText, clear: Redact | None) -> Sequence[bytes]:
    if isinstance(told, str):
        text = told if clear is None else clear.text(told)
        return [
            text[start : start + WRITE_BYTES].encode() for start in range(0, len(text), WRITE_BYTES)
        ]
    if clear is None:
        return told.pieces
    stream = clear.stream()
    return [*map(stream.feed, told.pieces), stream.finish()]


def _without_large(
    value: Json, path: tuple[str, ...], texts: list[tuple[Sequence[str], str | LargeText]]
) -> Json:
    large = isinstance(value, LargeText) or (
        isinstance(value, str) and len(value) >= LARGE_CHARACTERS
    )
    if large and path:
        texts.append((path, value))
        return None
    if isinstance(value, dict) and len(path) < DEPTH:
        return {
            key: _without_large(item, (*path, key), texts)
            if isinstance(item, (str, dict, LargeText)) and isinstance(key, str)
            else item
            for key, item in value.items()
        }
    return value
