"""Decodes a server's stdout into JSON-RPC messages: pure, incremental and bounded.

Differs from the SDK: linear in a message's size (the SDK's is quadratic), with limits on bytes and
values; an invalid response becomes an error for its request instead of a timeout.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass

from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.jsonrpc import PARSE_ERROR

from bridge.guest.protocol.wire import count_values
from bridge.upstream.results import NO_MESSAGE, excerpt, repair_message

_MESSAGE = re.compile(r'\{\s*"jsonrpc"')

_DECODER = json.JSONDecoder()

_FOR_CLIENTS = ("ping", "notifications/", "sampling/", "elicitation/", "roots/")

REPAIRED_BYTES = 4 * 1024 * 1024
"""Bytes of a message that is repaired, which takes ten times as long as reading it."""

SALVAGE_BYTES = 512
"""Bytes at either end of a message that are searched for its id, which is the first or the last
member in every known implementation; our own ids are shorter."""

MAX_VALUES = 500_000
"""Values in one message, counted before it is parsed: the JSON parser holds the GIL, for this many
up to 0.2 s. A list of ten thousand tools with ten described parameters each has 400,000."""

MAX_LONG_NUMBERS = 100
"""Numbers of a thousand digits and more in one message: reading one takes time that grows with the
square of its digits."""

_LONG_NUMBER = b"0" * 1000 + b","

_KINDS = bytes(
    ord("0") if code in b"0123456789" else ord(",") if code in b",]} \t\r\n" else ord("x")
    for code in range(256)
)
"""Translates digits to 0 and separators to a comma, to find long numbers."""

_PIECE = 256 * 1024

PREVIEW_CHARACTERS = 200  # Of a line that is not a message, in the log.

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'

# Anchored at the outermost brace: an "id" somewhere inside a result must not be mistaken for it.
_HEAD_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID)
_TAIL_ID = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")


@dataclass(frozen=True)
class Line:
    data: bytes


@dataclass(frozen=True)
class OversizeLine:
    """A line beyond the cap; only its head and tail are kept."""

    head: bytes
    tail: bytes
    size: int


@dataclass(frozen=True)
class TooLarge:
    """`data` of the error that replaces an oversize message; sizes in bytes, or in values.

    An object rather than a code, so that no server can send one.
    """

    size: int
    limit: int


@dataclass(frozen=True)
class Noise:
    """A line that is not one JSON-RPC message."""

    preview: str
    messages: tuple[bytes, ...] = ()


class LineFramer:
    """Splits a byte stream at newlines, holding at most `max_bytes` of an unfinished line.

    A line grows in one buffer, so that the work is linear in its size and it is in memory once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = io.BytesIO()
        self._size = 0
        self._head: bytes | None = None
        self._tail = b""

    def feed(self, data: bytes) -> list[Line | OversizeLine]:
        """Add bytes and return the lines that they complete."""
        if b"\n" not in data:
            # Most of a large message: nothing to split, and so nothing to copy.
            self._extend(data)
            return []
        first, *rest = data.split(b"\n")
        self._extend(first)
        done: list[Line | OversizeLine] = []
        for part in rest:
            done.append(self._take())
            self._extend(part)
        return done

    def finish(self) -> Line | OversizeLine | None:
        return self._take() if self._size else None

    def _extend(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._head is not None:
            self._tail = (self._tail + part)[-SALVAGE_BYTES:]
            return
        self._buffer.write(part)
        if self._size > self._max_bytes:
            whole = self._buffer.getvalue()
            self._buffer = io.BytesIO()
            self._head, self._tail = whole[:SALVAGE_BYTES], whole[-SALVAGE_BYTES:]

    def _take(self) -> Line | OversizeLine:
        line: Line | OversizeLine
        if self._head is None:
            line = Line(self._buffer.getvalue())
        else:
            line = OversizeLine(self._head, self._tail, self._size)
        self._buffer = io.BytesIO()
        self._size = 0
        self._head = None
        self._tail = b""
        return line


def encode(message: JSONRPCMessage) -> str:
    return message.model_dump_json(by_alias=True, exclude_unset=True)


def decode_line(line: Line) -> JSONRPCMessage | Noise | None:
    """Return a line's message; None for a blank line.

    Invalid UTF-8 and lone surrogates inside a message become U+FFFD. A message that cannot be
    parsed but shows a request's id becomes an error for that request.
    """
    data = line.data
    if not data.strip():
        return None
    try:
        return jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError as error:
        problem = str(error)
    if (better := repair_message(data)) is not data:
        return decode_line(Line(better))
    preview = data[:PREVIEW_CHARACTERS].decode("utf-8", "replace")
    if messages := _messages_in(data):
        return Noise(preview, messages)
    if data.lstrip()[:1] == b"{":
        with suppress(ValueError, RecursionError):
            if len(data) <= REPAIRED_BYTES:
                plain = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
                clean = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                return jsonrpc_message_adapter.validate_json(clean, by_name=False)
        deep = "recursion limit" in problem
        message = "The server's answer nests too deeply." if deep else NO_MESSAGE
        return _parse_error(data, data, message) or Noise(preview)
    return Noise(preview)


def _messages_in(data: bytes) -> tuple[bytes, ...]:
    text = data.decode("utf-8", "replace") if len(data) <= REPAIRED_BYTES else ""
    found, end = [], 0
    for match in _MESSAGE.finditer(text):
        if match.start() >= end:
            with suppress(ValueError, RecursionError):
                message, end = _DECODER.raw_decode(text, match.start())
                # Some servers log the requests that they receive.
                if str(message.get("method", "ping")).startswith(_FOR_CLIENTS):
                    found.append(text[match.start() : end].encode())
    return tuple(found) if found and len(found[0]) < len(data.strip()) else ()


def request_id(data: bytes) -> int | str | None:
    """Return the id of a request that the SDK has encoded; None for other messages."""
    return _salvage_id(data[:SALVAGE_BYTES], data[-SALVAGE_BYTES:])


def repair_body(data: bytes, answers: int | str | None = None) -> bytes:
    """Return a message that the SDK's models accept, or the error of the request it answers.

    Args:
        answers: The id of the request that the body answers, whatever the body's own; None if it
            is one message of several.
    """

    def decode(data: bytes) -> bytes:
        message = decode_line(Line(data))
        if message is not None and not isinstance(message, Noise):
            if answers is not None and isinstance(message, JSONRPCResponse | JSONRPCError):
                message.id = answers
            return encode(message).encode()
        if answers is None:
            return data
        start = f"{NO_MESSAGE} It begins: {excerpt(data)}"
        return encode(_error(answers, start if data.strip() else "The answer is empty.")).encode()

    return repair_message(data, decode, answers)


def decode_oversize(line: OversizeLine, limit: int) -> JSONRPCError | None:
    message = f"The server's answer has {line.size} bytes; the limit is {limit}."
    return _parse_error(line.head, line.tail, message, TooLarge(line.size, limit))


def has_too_many_values(line: Line, most: int = MAX_VALUES) -> bool:
    """Whether a line holds too many values or very long numbers; does not parse it."""
    data = line.data
    if count_values(data, most) > most:
        return True
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    return sum(piece.translate(_KINDS).count(_LONG_NUMBER) for piece in pieces) > MAX_LONG_NUMBERS


def decode_too_many(line: Line) -> JSONRPCError | None:
    """Return an error for the request that such a line answers; None if its id is not found."""
    values = count_values(line.data, MAX_VALUES)
    message = (
        f"The server's answer holds {values:,} values or more; the limit is {MAX_VALUES:,}, of "
        f"which {MAX_LONG_NUMBERS} may be numbers of a thousand digits."
    )
    return _parse_error(line.data, line.data, message, TooLarge(values, MAX_VALUES))


def _parse_error(
    head: bytes, tail: bytes, message: str, data: TooLarge | None = None
) -> JSONRPCError | None:
    """Return an error for the request that a message answers; None if its id is not found."""
    answered = _salvage_id(head[:SALVAGE_BYTES], tail[-SALVAGE_BYTES:])
    return None if answered is None else _error(answered, message, data)


def _error(answered: int | str, message: str, data: TooLarge | None = None) -> JSONRPCError:
    error = ErrorData(code=PARSE_ERROR, message=message, data=data)
    return JSONRPCError(jsonrpc="2.0", id=answered, error=error)


def _salvage_id(head: bytes, tail: bytes) -> int | str | None:
    match = _HEAD_ID.match(head) or _TAIL_ID.search(tail)
    if match is None:
        return None
    value: int | str = json.loads(match.group(1).decode("utf-8", "replace"))
    return value
