"""Decodes a server's messages, and puts its results into one form: pure and bounded.

Differs from the SDK: linear in a message's size (the SDK's is quadratic), with limits on bytes and
values. An invalid response becomes an error for its request instead of a timeout. Servers send
results and errors in many forms, such as a text as `content` or an older `toolResult`.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mcp import types
from pydantic_core import from_json, to_json

from bridge.event_loop import LARGE, LargeText
from bridge.guest.protocol.wire import count_values
from bridge.model import Json

RAW = "mcp-code-bridge/raw"
"""Wraps a result that is not an object, because JSON-RPC's models accept only objects."""

EXCERPT_CHARACTERS = 300  # Of a body, in error messages.

_TAGS = re.compile(r"(?s)<(script|style)\b.*?</\1\s*>|<[^<>]*>")

NO_MESSAGE = "The server's answer is not a JSON-RPC message."


def excerpt(body: bytes) -> str:
    text = body[: 64 * 1024].decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        text = _TAGS.sub(" ", text)
    return " ".join(text.split())[:EXCERPT_CHARACTERS]


_TRUE = frozenset(("true", "1", "yes"))


def parse_result(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return a call's result with a list of blocks as `content`; other fields are unchanged."""
    value: Json = answer.get(RAW, answer)
    if value is None:
        return {"content": []}
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    if isinstance(value, list) and all(map(_is_block, value)):
        return {"content": value}
    if not isinstance(value, Mapping):
        return {"content": [], "structuredContent": value}
    content, is_error = value.get("content"), value.get("isError", False)
    if isinstance(content, list) and is_error in (True, False) and all(map(_is_block, content)):
        return dict(value)
    result = dict(value)
    if "isError" in value:
        result["isError"] = is_error is True or str(is_error).strip().lower() in _TRUE
    if content is None and "toolResult" in value:
        older = value["toolResult"]
        return {**parse_result(older if isinstance(older, dict) else {RAW: older}), **_rest(result)}
    if content is None and value.keys().isdisjoint(_FIELDS):
        fields = {key: item for key, item in value.items() if key not in ("_meta", "isError")}
        return {**_rest(result), "content": [], **({"structuredContent": fields} if fields else {})}
    listed = content if isinstance(content, list) else [] if content is None else [content]
    result["content"] = [item if _is_block(item) else _block(item) for item in listed]
    return result


_FIELDS = frozenset(("content", "structuredContent", "task", "taskId", "resultType"))
"""Fields of a result or a task. An object with none of them is a program's value."""


def _rest(result: Mapping[str, Json]) -> dict[str, Json]:
    return {key: result[key] for key in ("isError", "_meta") if result.get(key)}


def _is_block(item: Json) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    # A text may be a `LargeText`.
    return isinstance(kind, str) and (kind != "text" or not isinstance(item.get("text"), _NO_TEXTS))


_NO_TEXTS = (type(None), bool, int, float, list, dict)


def _block(item: Json) -> dict[str, Json]:
    kind = item.get("type") if isinstance(item, dict) else None
    if isinstance(item, dict) and (
        kind == "text" or (not isinstance(kind, str) and "text" in item)
    ):
        return {**item, "type": "text", "text": _as_text(item.get("text"))}
    return {"type": "text", "text": _as_text(item)}


def _as_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def repair_response(document: Json, answers: int | str | None = None) -> dict[str, Json] | None:
    """Return a response in JSON-RPC's form, with the id `answers` if given; else None."""
    if not isinstance(document, dict) or "method" in document:
        return None
    if answers is not None:
        bare = document.keys().isdisjoint(("jsonrpc", "result", "error"))
        if bare and isinstance(document.get("content"), list):
            document = {"result": document}
        document = {**document, "id": answers}
    if "id" not in document:
        return None
    head = {"jsonrpc": "2.0", "id": document["id"]}
    error = document.get("error")
    if error is not None:
        fields = error if isinstance(error, dict) else {"message": error}
        code, message = fields.get("code"), fields.get("message")
        if type(code) is int and isinstance(message, str):
            return {**head, "error": error}
        text = message if isinstance(message, str) else _as_text(error)
        number = code if type(code) is int else types.INTERNAL_ERROR
        return {**head, "error": {"code": number, "message": text, "data": fields.get("data")}}
    if "result" not in document:
        if "jsonrpc" not in document:
            return None
        return {**head, "error": {"code": types.PARSE_ERROR, "message": NO_MESSAGE}}
    result = document["result"]
    return {**head, "result": result if isinstance(result, dict) else {RAW: result}}


def split_batch(data: bytes) -> list[bytes] | None:
    """Return the messages of a JSON array; None if the data is not an array of objects."""
    if data.lstrip()[:1] != b"[":
        return None
    try:
        document: Any = from_json(data)
    except ValueError:
        return None
    if not document or not all(isinstance(item, dict) for item in document):
        return None
    return [to_json(item, inf_nan_mode="constants") for item in document]


def repair_message(data: bytes, answers: int | str | None = None) -> bytes | None:
    """Return an odd response in JSON-RPC's form, any other message unchanged, and else None."""
    try:
        document: Any = from_json(data)
    except ValueError:
        return None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
        data = to_json(document, inf_nan_mode="constants")
    repaired = repair_response(document, answers)
    if repaired is None:
        return data if isinstance(document, dict) and "method" in document else None
    if all(document.get(key) == repaired[key] for key in repaired):
        return data
    return to_json(repaired, inf_nan_mode="constants")


Response = tuple[object, dict[str, Json]]  # The request's id, as received, and the result.


def parse_response(line: bytes) -> Response | None:
    """Return id and result of a response with a result; None for other lines."""
    try:
        # Caching strings is slow in large messages, where few repeat.
        document: Any = from_json(line, cache_strings=len(line) <= LARGE)
    except ValueError:
        return None
    if type(document) is not dict or document.get("jsonrpc") != "2.0":
        return None
    result = document.get("result", document)
    if result is document or "error" in document or "method" in document:
        return None
    return document.get("id"), result if type(result) is dict else {RAW: result}


LEAST_BYTES = 1024 * 1024  # Of a large line. Parsing a shorter one as a whole costs little.
EDGE_BYTES = 4096  # Most bytes of the response before its large text, and after it.
PIECE_BYTES = 256 * 1024  # Of a large line, decoded or searched at a time.

_TEXT_BEGINS = re.compile(rb'"text"\s*:\s*"')
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def parse_large_response(line: bytes) -> Response | None:
    """Return id and result of a response that is mostly one large text; None for other lines.

    Parsing it as a whole would take three times its size in memory.
    """
    begins = _TEXT_BEGINS.search(line, 0, EDGE_BYTES)
    end = _end_of_text(line)
    if begins is None or end - begins.end() < LEAST_BYTES - 2 * EDGE_BYTES:
        return None
    # The rest is valid with a mark for the text, and the text by itself, so the line is valid.
    mark = secrets.token_hex(16)
    response = parse_response(line[: begins.end()] + mark.encode() + line[end:])
    content = None if response is None else response[1].get("content")
    if response is None or response[1].get("isError") is True or not isinstance(content, list):
        return None
    if len(content) != 1 or not isinstance(content[0], dict):
        return None
    block = content[0]
    if block.get("type") != "text" or block["text"] != mark:
        return None
    pieces = _decode_pieces(line, begins.end(), end)
    # `bridge.rpc.values` parses a text of JSON as data, for plans and learned shapes.
    if pieces is None or pieces[0].lstrip()[:1] in (b"", b"{", b"["):
        return None
    response[1]["content"] = [{**block, "text": LargeText(pieces)}]
    return response


def _end_of_text(line: bytes) -> int:
    """Return the index of the first unescaped quote near the end; -1 for none."""
    edge = line[-EDGE_BYTES:]
    at = edge.find(b'"')
    while at >= 0:
        backslashes = at - len(edge[:at].rstrip(b"\\"))
        if backslashes % 2 == 0 and backslashes < at:
            return len(line) - len(edge) + at
        at = edge.find(b'"', at + 1)
    return -1


def _decode_pieces(line: bytes, start: int, end: int) -> list[bytes] | None:
    """Return a JSON string's text as pieces of UTF-8; None if it is invalid or cannot be cut."""
    pieces = []
    while start < end:
        cut = end if end - start <= PIECE_BYTES else _cut(line, start, start + PIECE_BYTES)
        if cut <= start:
            return None
        try:
            text: str = from_json(b'"%b"' % line[start:cut], cache_strings=False)
        except ValueError:
            return None
        pieces.append(text.encode())
        start = cut
    return pieces


def _cut(line: bytes, start: int, end: int) -> int:
    """Return the last index up to `end` that is not within a character."""
    for _ in range(3):
        if line[end] & 0xC0 == 0x80:
            end -= 1
    # An escaped character beyond Unicode's first plane has two halves.
    escape = line.rfind(b"\\", max(start, end - 12), end)
    if escape < 0:
        return end
    # The first of several backslashes begins an escape.
    end = start + len(line[start:escape].rstrip(b"\\"))
    return end - 6 if _FIRST_HALF.fullmatch(line, max(start, end - 6), end) else end


_MESSAGE = re.compile(r'\{\s*"jsonrpc"')

_DECODER = json.JSONDecoder()

_FOR_CLIENTS = ("ping", "notifications/", "sampling/", "elicitation/", "roots/")

REPAIRED_BYTES = 4 * 1024 * 1024  # Most of a message to repair, which takes ten times as long.

SALVAGE_BYTES = 512
"""Bytes at either end of a message that are searched for its id. In every known implementation
the id is the first or the last member. The bridge's own ids are shorter."""

MAX_VALUES = 500_000
"""Values in one message, counted before it is parsed. The JSON parser holds the GIL up to 0.2 s for
them. A list of ten thousand tools with ten described parameters each has 400,000."""

MAX_LONG_NUMBERS = 100
"""Numbers of a thousand digits and more in one message. Parsing one takes time that grows with the
square of its digits."""

_LONG_NUMBER = b"0" * 1000 + b","

_KINDS = bytes(
    ord("0") if code in b"0123456789" else ord(",") if code in b",]} \t\r\n" else ord("x")
    for code in range(256)
)
"""Translates digits to 0 and separators to a comma, to find long numbers."""

PREVIEW_CHARACTERS = 200  # Of a line that is not a message, in the log.

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'

# Anchored at the outermost brace, because a result may contain an "id".
_HEAD_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID)
_TAIL_ID = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")


@dataclass(frozen=True)
class OversizeLine:
    """The head and tail of a line beyond the limit."""

    head: bytes
    tail: bytes
    size: int


@dataclass(frozen=True)
class TooLarge:
    """`data` of the error that replaces an oversize message; sizes in bytes or in values.

    No server can send such an object, unlike a code.
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

    A line grows in one buffer, so the work is linear in its size and memory holds it once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = io.BytesIO()
        self._size = 0
        self._head = b""

    def feed(self, data: bytes) -> list[bytes | OversizeLine]:
        if b"\n" not in data:
            # Splitting would copy each part of a large message.
            self._extend(data)
            return []
        first, *rest = data.split(b"\n")
        self._extend(first)
        done: list[bytes | OversizeLine] = []
        for part in rest:
            done.append(self._take())
            self._extend(part)
        return done

    def finish(self) -> bytes | OversizeLine | None:
        return self._take() if self._size else None

    def _extend(self, part: bytes) -> None:
        self._size += len(part)
        self._buffer.write(part)
        if self._size > self._max_bytes:
            whole = self._buffer.getvalue()
            self._head = self._head or whole[:SALVAGE_BYTES]
            self._buffer = io.BytesIO()
            self._buffer.write(whole[-SALVAGE_BYTES:])

    def _take(self) -> bytes | OversizeLine:
        data, head, size = self._buffer.getvalue(), self._head, self._size
        self._buffer, self._head, self._size = io.BytesIO(), b"", 0
        return OversizeLine(head, data, size) if head else data


def encode(message: types.JSONRPCMessage) -> str:
    return message.model_dump_json(by_alias=True, exclude_unset=True)


def decode_line(data: bytes) -> types.JSONRPCMessage | Noise | None:
    """Return a line's message; None for a blank line.

    Invalid UTF-8 and lone surrogates inside a message become U+FFFD. An invalid message that shows
    a request's id becomes an error for that request.
    """
    if not data.strip():
        return None
    try:
        return types.jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError as error:
        problem = str(error)
    if (better := repair_message(data)) not in (None, data):
        return decode_line(better)
    preview = data[:PREVIEW_CHARACTERS].decode("utf-8", "replace")
    if messages := _messages_in(data):
        return Noise(preview, messages)
    if data.lstrip()[:1] == b"{":
        with suppress(ValueError, RecursionError):
            if len(data) <= REPAIRED_BYTES:
                plain = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
                clean = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                return types.jsonrpc_message_adapter.validate_json(clean, by_name=False)
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


def repair_body(data: bytes, answers: int | str | None = None) -> bytes:
    """Return a message that the SDK's models accept, or the error of the request it answers.

    The id `answers` replaces the body's own; it is None for one message of several.
    """
    if (repaired := repair_message(data, answers)) is not None:
        return repaired
    message = decode_line(data)
    if message is None or isinstance(message, Noise):
        if answers is None:
            return data
        start = f"{NO_MESSAGE} It begins: {excerpt(data)}"
        message = _error(answers, start if data.strip() else "The answer is empty.")
    elif answers is not None and isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
        message.id = answers
    return encode(message).encode()


def decode_oversize(line: OversizeLine, limit: int) -> types.JSONRPCError | None:
    message = f"The server's answer has {line.size} bytes; the limit is {limit}."
    return _parse_error(line.head, line.tail, message, TooLarge(line.size, limit))


def has_too_many_values(data: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether a line has too many values or long numbers, without parsing it."""
    if count_values(data, most) > most:
        return True
    pieces = (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
    return sum(piece.translate(_KINDS).count(_LONG_NUMBER) for piece in pieces) > MAX_LONG_NUMBERS


def decode_too_many(data: bytes) -> types.JSONRPCError | None:
    """Return an error for the request that a line with too many values answers, if it has an id."""
    values = count_values(data, MAX_VALUES)
    message = (
        f"The server's answer holds {values:,} values or more; the limit is {MAX_VALUES:,}, of "
        f"which {MAX_LONG_NUMBERS} may be numbers of a thousand digits."
    )
    return _parse_error(data, data, message, TooLarge(values, MAX_VALUES))


def _parse_error(
    head: bytes, tail: bytes, message: str, data: TooLarge | None = None
) -> types.JSONRPCError | None:
    answered = message_id(head, tail)
    return None if answered is None else _error(answered, message, data)


def _error(answered: int | str, message: str, data: TooLarge | None = None) -> types.JSONRPCError:
    error = types.ErrorData(code=types.PARSE_ERROR, message=message, data=data)
    return types.JSONRPCError(jsonrpc="2.0", id=answered, error=error)


def message_id(head: bytes, tail: bytes) -> int | str | None:
    """Return the id at either end of a message."""
    match = _HEAD_ID.match(head[:SALVAGE_BYTES]) or _TAIL_ID.search(tail[-SALVAGE_BYTES:])
    if match is None:
        return None
    value: int | str = json.loads(match.group(1).decode("utf-8", "replace"))
    return value
