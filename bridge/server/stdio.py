"""The stdio transport: a client's lines on stdin as messages, and messages as lines on stdout.

The SDK's reader drops a line that it cannot parse, and its sender waits forever. The SDK's writer
uses a task and two threads for each message, which doubles the cost of a small answer.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR, RequestId, jsonrpc_message_adapter
from pydantic import ValidationError

from bridge.descriptor_reader import Reader
from bridge.event_loop import LARGE, offload
from bridge.server.greeting import NO_GREETING, Greeting
from bridge.upstream.framing import (
    MAX_VALUES,
    PREVIEW_CHARACTERS,
    LineFramer,
    Noise,
    OversizeLine,
    decode_line,
    decode_oversize,
    decode_too_many,
    encode,
    has_too_many_values,
)

STDIO = "stdio"
"""The owner of the runs of the client on stdio."""

PIECE_BYTES = select.PIPE_BUF
"""Written at once: a writable pipe takes this much without blocking."""


class StdoutMessages(ObjectSendStream[SessionMessage]):
    """A write stream for the SDK's server, over a descriptor that may block.

    It cancels `over` when the client has gone. `failure` has the reason. The SDK's response to the
    `answered` request is dropped, because `greet` has sent a response.
    """

    def __init__(self, fd: int, over: anyio.CancelScope, answered: RequestId | None = None) -> None:
        self._fd = fd
        self._over = over
        self._answered = answered
        # There is usually one writer, and then nothing to wait for.
        self._lock = anyio.Lock(fast_acquire=True)
        self._rest = memoryview(b"")
        self._closed = False
        self.failure: OSError | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message; if cancelled, write the rest of it before the next message."""
        message = item.message
        answers = message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        if self._answered is not None and answers == self._answered:
            self._answered = None
            if isinstance(message, JSONRPCError):
                logger.error("an answered request is refused: %s", message.error.message)
            return
        async with self._lock:
            await self._write_rest()
            self._rest = memoryview(encode(message).encode() + b"\n")
            await self._write_rest()

    async def _write_rest(self) -> None:
        written = 0
        while self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if not select.select((), (self._fd,), (), 0)[1]:
                await anyio.wait_writable(self._fd)
            elif written == 64:  # a quarter of a megabyte, well under a millisecond
                await anyio.lowlevel.checkpoint()
                written = 0
            else:
                try:
                    self._rest = self._rest[os.write(self._fd, self._rest[:PIECE_BYTES]) :]
                except BlockingIOError:
                    pass  # Another holder has made the pipe non-blocking and filled it.
                except OSError as error:
                    self.failure = self.failure or error
                    self._closed = True
                    self._over.cancel()
                    raise anyio.ClosedResourceError from error
                written += 1

    async def aclose(self) -> None:
        self._closed = True


@contextmanager
def claimed(fd: int) -> Iterator[int]:
    """Yield a private descriptor of stdin (0) or stdout (1), for the messages alone.

    Child processes and libraries use the usual descriptors. Meanwhile descriptor 0 reads as empty,
    and descriptor 1 leads to stderr, or nowhere if there is no stderr.
    """
    _flush()
    private = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)
        if fd == 1:
            with suppress(OSError):
                os.dup2(2, 1)
        yield private
    finally:
        _flush()
        os.dup2(private, fd)
        os.close(private)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 48 * 1024 * 1024
"""Of a client's message: a program and a run's files, as base64 in lines."""

TOO_MANY = f"The message holds too many values; at most {MAX_VALUES:,} are taken."

NO_BATCHES = ErrorData(
    code=INVALID_REQUEST,
    message="Batches are not supported: send each message by itself. None of this one was read.",
)
"""The answer to an array of messages, which only protocol 2025-03-26 had."""

_METHOD = b'"method"'  # In every request and, outside of values, in no response.


async def is_too_complex(line: bytes) -> bool:
    """Return whether a client's message has too many values to parse."""
    return len(line) > LARGE and await offload(line, partial(has_too_many_values, line))


@dataclass(frozen=True)
class MessageRefusal:
    answer: JSONRPCError


def read_line(
    line: bytes | OversizeLine, *, too_complex: bool = False
) -> JSONRPCMessage | MessageRefusal | Noise | None:
    """Parse a client's line, repaired if necessary.

    Returns:
        A message, a refusal of a request, `Noise`, or None for a blank line. An unreadable response
        is noise: an error with its id could answer one of the client's own requests.
    """
    if isinstance(line, OversizeLine):
        found = decode_oversize(line, MAX_MESSAGE_BYTES)
        if found is None or _METHOD not in line.head + line.tail:
            return Noise(f"{line.size} bytes, of which at most {MAX_MESSAGE_BYTES} are read")
        problem = f"The message has {line.size} bytes; at most {MAX_MESSAGE_BYTES} are taken."
        return _refusal(found, INVALID_REQUEST, problem)
    if too_complex:
        found = decode_too_many(line)
        return Noise(TOO_MANY) if found is None else _refusal(found, INVALID_REQUEST, TOO_MANY)
    if line[:1] == b"[" and _METHOD in line:
        return MessageRefusal(JSONRPCError(jsonrpc="2.0", id=None, error=NO_BATCHES))
    message = decode_line(line)
    if not isinstance(message, JSONRPCError) or message.error.code != PARSE_ERROR:
        return message
    # Either the client's own error, or the replacement of a line that cannot be parsed.
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    if _METHOD not in line:
        return Noise(line[:PREVIEW_CHARACTERS].decode("utf-8", "replace"))
    if first["type"] == "json_invalid":
        return _refusal(message, PARSE_ERROR, f"The message cannot be parsed: {first['msg']}.")
    return _refusal(message, INVALID_REQUEST, "The message is not a JSON-RPC request.")


def _refusal(found: JSONRPCError, code: int, problem: str) -> MessageRefusal:
    error = ErrorData(code=code, message=problem)
    return MessageRefusal(JSONRPCError(jsonrpc="2.0", id=found.id, error=error))


class StdinMessages(ObjectReceiveStream[SessionMessage | Exception]):
    """A read stream for the SDK's server, over a descriptor that may block. One task reads.

    It begins with the bytes that were `read` before, and answers unreadable requests.
    """

    def __init__(self, fd: int, writer: StdoutMessages, read: bytes = b"") -> None:
        self._fd = fd
        self._writer = writer
        self._framer = LineFramer(MAX_MESSAGE_BYTES)
        self._lines: deque[bytes | OversizeLine] = deque(self._framer.feed(read))
        self._reader = Reader(fd, self._read_now)
        self._ended = False

    async def receive(self) -> SessionMessage | Exception:
        while True:
            while self._lines:
                if len(self._lines) > 1:
                    # Many lines arrived at once, and their handlers need turns.
                    await anyio.lowlevel.checkpoint()
                message = await self._read(self._lines.popleft())
                if message is not None:
                    return SessionMessage(message)
            if self._ended:
                raise anyio.EndOfStream
            chunk = b""
            try:
                chunk = await self._reader.read()
            except OSError as error:
                if not self._ended:
                    logger.warning("stdin cannot be read any more: %s", error)
            if chunk:
                self._lines.extend(self._framer.feed(chunk))
            else:
                self._ended = True
                rest = self._framer.finish()
                self._lines.extend(() if rest is None else (rest,))

    async def _read(self, line: bytes | OversizeLine) -> JSONRPCMessage | None:
        too_complex = isinstance(line, bytes) and await is_too_complex(line)
        match read_line(line, too_complex=too_complex):
            case MessageRefusal(answer):
                logger.warning("the client sent an invalid message: %s", answer.error.message)
                await self._writer.send(SessionMessage(answer))
                return None
            case Noise(preview):
                logger.warning("the client sent a line that is no message: %r", preview)
                return None
            case message:
                return message

    def _read_now(self) -> bytes | None:
        """Return the available bytes, even of a descriptor that may block; None for none yet.

        Regular files and the null device, which no event loop can watch, are always readable.
        """
        if not select.select((self._fd,), (), (), 0)[0]:
            return None
        with suppress(BlockingIOError):
            return os.read(self._fd, 64 * 1024)  # The capacity of a pipe.
        return None

    async def aclose(self) -> None:
        self._ended = True
        self._reader.close()
        self._lines.clear()


async def serve_stdio(server: Server[Any], greeting: Greeting = NO_GREETING) -> None:
    """Serve an MCP server to one client on stdin and stdout until it closes stdin."""
    options = server.create_initialization_options()
    over = anyio.CancelScope()
    with claimed(1) as out, claimed(0) as into:
        writer = StdoutMessages(out, over, greeting.answered)
        with over:
            await server.run(StdinMessages(into, writer, greeting.read), writer, options)
    if writer.failure is not None:
        raise writer.failure
