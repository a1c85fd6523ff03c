"""One client's lines on stdin as messages, and an answer for each request that cannot be read.

Owns the claim on descriptor 0, the bound of a line, and what is said of a line that is no message.
How a line is split and repaired is `bridge.upstream.framing`'s; stdout is the SDK's. The SDK's own
reader drops a line that it cannot parse, and the client that sent it waits for ever.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR
from pydantic import ValidationError

from bridge.upstream.framing import (
    PREVIEW_CHARACTERS,
    Line,
    LineFramer,
    Noise,
    OversizeLine,
    decode_line,
    decode_oversize,
)

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Of a client's line. A program may have a small part of this; what is longer is a mistake, and
would have to be held in memory."""

CHUNK_BYTES = 64 * 1024
"""Read at once: what a pipe holds."""

_METHOD = b'"method"'
"""Stands in every request and, outside of values, in no response."""

Messages = MemoryObjectReceiveStream[SessionMessage | Exception]


class Writer(Protocol):
    """Takes messages for the client, as the SDK's write stream does."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message."""


@dataclass(frozen=True)
class Refusal:
    """A request that cannot be read.

    Attributes:
        answer: What its sender is told.
    """

    answer: JSONRPCError


def read_line(line: Line | OversizeLine) -> JSONRPCMessage | Refusal | Noise | None:
    """Return the message that a client's line is, repaired if need be.

    Returns:
        A message, a refusal of a request, `Noise`, or None for a blank line. A response that
        cannot be read is noise: its id is one of ours, and may also be that of a request which
        the client has under way.
    """
    if isinstance(line, OversizeLine):
        found = decode_oversize(line, MAX_LINE_BYTES)
        if found is None or _METHOD not in line.head + line.tail:
            return Noise(f"{line.size} bytes, of which at most {MAX_LINE_BYTES} are taken")
        problem = f"The message has {line.size} bytes; at most {MAX_LINE_BYTES} are taken."
        return _refusal(found, INVALID_REQUEST, problem)
    message = decode_line(line)
    if not isinstance(message, JSONRPCError) or message.error.code != PARSE_ERROR:
        return message
    # Either what the client says itself, or what stands for a line that could not be parsed.
    try:
        return jsonrpc_message_adapter.validate_json(line.data, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    if _METHOD not in line.data:
        return Noise(line.data[:PREVIEW_CHARACTERS].decode("utf-8", "replace"))
    if first["type"] == "json_invalid":
        return _refusal(message, PARSE_ERROR, f"The message cannot be parsed: {first['msg']}.")
    return _refusal(message, INVALID_REQUEST, "The message is not a JSON-RPC request.")


def _refusal(found: JSONRPCError, code: int, problem: str) -> Refusal:
    error = ErrorData(code=code, message=problem)
    return Refusal(JSONRPCError(jsonrpc="2.0", id=found.id, error=error))


@asynccontextmanager
async def stdin_messages(writer: Writer) -> AsyncIterator[Messages]:
    """Yield the client's messages; the stream ends when stdin does.

    Args:
        writer: Where the errors go that answer requests which cannot be read.
    """
    inbound, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    with claimed_stdin() as fd, inbound, messages:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pump, fd, inbound, writer)
            yield messages
            tasks.cancel_scope.cancel()


@contextmanager
def claimed_stdin() -> Iterator[int]:
    """Yield a private descriptor of stdin; meanwhile descriptor 0 reads as empty.

    What the bridge starts inherits descriptor 0, and must not eat the client's messages.
    """
    private = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        yield private
    finally:
        os.dup2(private, 0)
        os.close(private)


async def _pump(
    fd: int, inbound: MemoryObjectSendStream[SessionMessage | Exception], writer: Writer
) -> None:
    framer = LineFramer(MAX_LINE_BYTES)
    try:
        async with inbound:
            while chunk := await _read_chunk(fd):
                for line in framer.feed(chunk):
                    await _deliver(line, inbound, writer)
            if (rest := framer.finish()) is not None:
                await _deliver(rest, inbound, writer)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The session is over before stdin is: nobody is left to read for, or to answer to.
        logger.debug("what still comes on stdin is not read")


async def _read_chunk(fd: int) -> bytes:
    """Return what there is, waiting for it; nothing at the end."""
    # A regular file and the null device cannot be waited for, and need not be.
    with suppress(OSError):
        # A thread that waited in `read` could not be cancelled, and would hold up the end.
        await anyio.wait_readable(fd)
    try:
        return await anyio.to_thread.run_sync(os.read, fd, CHUNK_BYTES)
    except OSError as error:
        logger.warning("stdin cannot be read any more: %s", error)
        return b""


async def _deliver(
    line: Line | OversizeLine,
    inbound: MemoryObjectSendStream[SessionMessage | Exception],
    writer: Writer,
) -> None:
    match read_line(line):
        case Refusal(answer):
            logger.warning("the client sent what cannot be read: %s", answer.error.message)
            await writer.send(SessionMessage(answer))
        case Noise(preview):
            logger.warning("the client sent a line that is no message: %r", preview)
        case None:
            pass
        case message:
            await inbound.send(SessionMessage(message))
