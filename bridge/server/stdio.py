"""The stdio transport: a client's lines on stdin as messages, and messages as lines on stdout.

The SDK's reader drops a line that it cannot parse, and its sender waits forever. The SDK's writer
uses a task and two threads for each message, which doubles the cost of a small answer.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.lowlevel
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from bridge.descriptor_reader import Reader, input_of, is_ready
from bridge.errors import BridgeError
from bridge.event_loop import LARGE, offload
from bridge.gate.audit.reading import about
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

logger = logging.getLogger(__name__)

STDIO = "stdio"
"""The owner of the runs of the client on stdio."""

CANCELLED = "notifications/cancelled"

PIECE_BYTES = select.PIPE_BUF
"""Written at once: a writable pipe takes this much without blocking."""

MAX_MESSAGE_BYTES = 48 * 1024 * 1024
"""Of a client's message: a program and a run's files, as base64 in lines."""

TOO_MANY = f"The message holds too many values; at most {MAX_VALUES:,} are taken."

NO_BATCHES = ErrorData(
    code=INVALID_REQUEST,
    message="Batches are not supported: send each message by itself. None of this one was read.",
)
"""The answer to an array of messages, which only protocol 2025-03-26 had."""

_METHOD = b'"method"'  # In every request and, outside of values, in no response.


@dataclass(frozen=True)
class Resumed:
    """A client's session that another bridge has begun."""

    lines: Sequence[bytes] = ()  # The client's lines that set up the session.
    # The unanswered requests, and why their responses are lost.
    open: Mapping[RequestId, str] = field(default_factory=dict)
    torn: bool = False  # Whether the bridge ended within a long message.
    unread: bytes = b""  # The client's input that no bridge has taken.

    def set_up(self) -> set[RequestId]:
        """Return the ids of the requests among `lines`, which this bridge handles again."""
        found = map(decode_line, self.lines)
        return {each.id for each in found if isinstance(each, JSONRPCRequest)}


class Observer:
    """An observer of a client's messages. This one does nothing; `Link` reports to a front."""

    async def take(self, line: bytes | OversizeLine, message: JSONRPCMessage | None) -> None:
        """Take a line of the client, before its message is handled."""

    def note_writing(self, *, long: bool) -> None:
        """Note the beginning of a `long` message's writing, or its end."""

    def note_response(self, number: RequestId) -> None:
        """Note that a request's response was written."""


class StdoutMessages(ObjectSendStream[SessionMessage]):
    """A write stream for the SDK's server, over a descriptor that may block.

    It cancels `over` when the client closes its end. `failure` has the reason. In a resumed session
    it drops the responses to set-up requests, because the earlier bridge has sent them. Ids of the
    server's requests follow `before`, so that a late answer to the earlier bridge matches none.
    """

    def __init__(
        self,
        fd: int,
        over: anyio.CancelScope,
        observer: Observer | None = None,
        resumed: Resumed = Resumed(),
    ) -> None:
        self.before = time.time_ns() // 1_000_000 if resumed.lines else 0
        self._fd = fd
        self._over = over
        self._observer = observer or Observer()
        self._answered = resumed.set_up() - resumed.open.keys()
        # There is usually one writer, and then nothing to wait for.
        self._lock = anyio.Lock(fast_acquire=True)
        # The rest of a line: a line that was written in part ends here.
        self._rest = memoryview(b"\n" if resumed.torn else b"")
        self._closed = False
        self.failure: OSError | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message; if cancelled, the next call writes the rest of it first."""
        message = item.message
        answers = message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        if answers in self._answered:
            self._answered.discard(answers)
            return
        _follow(message, self.before)
        async with self._lock:
            await self._write_rest()
            self._rest = memoryview(encode(message).encode() + b"\n")
            # A pipe takes a short message whole.
            long = len(self._rest) > PIECE_BYTES
            if long:
                self._observer.note_writing(long=True)
            await self._write_rest()
            if long:
                self._observer.note_writing(long=False)
            if answers is not None:
                self._observer.note_response(answers)

    async def _write_rest(self) -> None:
        written = 0
        while self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if not is_ready(self._fd, select.POLLOUT):
                await anyio.wait_writable(self._fd)
            elif written == 64:  # a quarter of a megabyte, well under a millisecond
                await anyio.lowlevel.checkpoint()
                written = 0
            else:
                try:
                    self._rest = self._rest[os.write(self._fd, self._rest[:PIECE_BYTES]) :]
                except BlockingIOError:
                    pass  # Another process has made the pipe non-blocking and filled it.
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

    Child processes and libraries use the usual descriptors. In this context descriptor 0 reads as
    empty, and descriptor 1 leads to stderr, or nowhere if there is no stderr.
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
    """A read stream for the SDK's server, which one task reads. It answers unreadable requests.

    It begins with the lines that an earlier bridge has `taken`.
    """

    def __init__(
        self,
        source: Reader,
        writer: StdoutMessages,
        observer: Observer | None = None,
        taken: Iterable[bytes] = (),
    ) -> None:
        self._reader = source
        self._writer = writer
        self._observer = observer or Observer()
        self._framer = LineFramer(MAX_MESSAGE_BYTES)
        self._lines: deque[bytes | OversizeLine] = deque(taken)
        self._known = len(self._lines)
        self._ended = False

    async def receive(self) -> SessionMessage | Exception:
        while True:
            while self._lines:
                if len(self._lines) > 1:
                    # Many lines arrived at once, and their handlers need turns.
                    await anyio.lowlevel.checkpoint()
                line = self._lines.popleft()
                message = await self._read(line)
                if self._known:
                    self._known -= 1
                else:
                    await self._observer.take(line, message)
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    number = coerce_request_id(message.id)
                    message.id = number - self._writer.before if isinstance(number, int) else number
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

    async def aclose(self) -> None:
        self._ended = True
        self._reader.close()
        self._lines.clear()


def _follow(message: JSONRPCMessage, before: int) -> None:
    """Add `before` to the id of a server's request, or of its cancellation."""
    if isinstance(message, JSONRPCRequest):
        message.id = int(message.id) + before
    elif isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
        message.params = dict(message.params or {})
        message.params["requestId"] += before


def resumed_session(session: Mapping[str, Any], state_dir: Path) -> Resumed:
    """Return the session that a front continues, as `Front.session` describes it. Reads files."""
    return Resumed(
        lines=[line.encode() for line in session.get("lines", ())],
        open={json.loads(number): _fate(run, state_dir) for number, run in session.get("open", ())},
        torn=session.get("torn", False),
        unread=session.get("unread", b""),
    )


def _fate(run: str, state_dir: Path) -> str:
    """Return the error of a request whose bridge ended before the response."""
    text = "The background bridge ended before it had answered."
    if not run:
        return f"{text} No run is known to have begun. Make the request again."
    records: Sequence[Mapping[str, Any]] = ()
    with suppress(OSError, BridgeError):
        records = about(state_dir / "audit", run)
    ends = {each.get("call"): each.get("outcome") for each in records if each["kind"] == "outcome"}
    sent = Counter(
        f"{each.get('server')}.{each.get('tool')} ({ends.get(each.get('call')) or 'no answer'})"
        for each in records
        if each["kind"] == "call"
    )
    calls = ", ".join(f"{call} × {n}" if n > 1 else call for call, n in sent.items())
    return f"{text} Run {run} had sent {calls or 'no recorded call'}. Check before you repeat it."


async def serve_client(
    server: Server[Any],
    source: Reader,
    out: int,
    observer: Observer | None = None,
    resumed: Resumed = Resumed(),
) -> None:
    """Serve an MCP server to one client until its input ends.

    Args:
        out: The descriptor of the client's output.

    Raises:
        OSError: The client closed its output first.
    """
    over = anyio.CancelScope()
    writer = StdoutMessages(out, over, observer, resumed)
    reader = StdinMessages(source, writer, observer, resumed.lines)
    with over, suppress(anyio.ClosedResourceError):
        for number in resumed.open.keys() - resumed.set_up():
            error = ErrorData(code=INTERNAL_ERROR, message=resumed.open[number])
            await writer.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error)))
        if any(b'"notifications/initialized"' in line for line in resumed.lines):
            # The client may have lists of the earlier bridge, and is notified after it asks again.
            for name in ("tools", "resources"):
                method = f"notifications/{name}/list_changed"
                await writer.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method)))
        await server.run(reader, writer, server.create_initialization_options())
    if writer.failure is not None:
        raise writer.failure


async def serve_stdio(server: Server[Any], resumed: Resumed = Resumed()) -> None:
    """Serve an MCP server to one client on stdin and stdout until it closes stdin."""
    with claimed(1) as out, claimed(0) as into:
        reader = input_of(into)
        reader.unread(resumed.unread)
        await serve_client(server, reader, out, resumed=resumed)
