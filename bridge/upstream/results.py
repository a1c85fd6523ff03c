"""What servers send as results, in the one form that the rest of the bridge reads. Pure.

Servers also send a text or one block as `content`, and a bare list or text as the result. Others
send an older `toolResult`, an error that is a text, or a response inside an array.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from mcp_types.jsonrpc import INTERNAL_ERROR, PARSE_ERROR
from pydantic_core import from_json, to_json

from bridge.large_text import LargeText
from bridge.model import Json
from bridge.offload import LARGE

RAW = "mcp-code-bridge/raw"
"""The key of a result that is no object: JSON-RPC's models take objects only."""

EXCERPT_CHARACTERS = 300  # Of a body in messages.

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
"""Fields that tell a result, or a task, from an object that a server sent as its result."""


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
    """Return a response in JSON-RPC's form, with the id `answers` if that is given.

    A result that is no object is wrapped (`RAW`). None for a document that is no response.
    """
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
        number = code if type(code) is int else INTERNAL_ERROR
        return {**head, "error": {"code": number, "message": text, "data": fields.get("data")}}
    if "result" not in document:
        if "jsonrpc" not in document:
            return None
        return {**head, "error": {"code": PARSE_ERROR, "message": NO_MESSAGE}}
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


def repair_message(
    data: bytes,
    unreadable: Callable[[bytes], bytes] | None = None,
    answers: int | str | None = None,
) -> bytes:
    """Return a message in JSON-RPC's form, if it is a response that is not; else unchanged.

    `unreadable` makes a message of data that is not JSON, or not a message.
    """
    try:
        document: Any = from_json(data)
    except ValueError:
        return unreadable(data) if unreadable else data
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
        data = to_json(document, inf_nan_mode="constants")
    repaired = repair_response(document, answers)
    if repaired is None:
        is_message = isinstance(document, dict) and "method" in document
        return data if unreadable is None or is_message else unreadable(data)
    if all(document.get(key) == repaired[key] for key in repaired):
        return data
    return to_json(repaired, inf_nan_mode="constants")


Response = tuple[object, dict[str, Json]]  # The request's id, as received, and the result.


def parse_response(line: bytes) -> Response | None:
    """Return id and result of a line that is a response with a result; else None. Pure.

    A result that is no object is wrapped; see `results.repair_response`.
    """
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


LEAST_BYTES = 1024 * 1024  # Of a line; reading a shorter one as a whole costs little.
EDGE_BYTES = 4096  # Before the text, and after it; there is no more of the response than that.
PIECE_BYTES = 256 * 1024  # Decoded at a time.

_TEXT_BEGINS = re.compile(rb'"text"\s*:\s*"')
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def parse_large_response(line: bytes) -> Response | None:
    """Return id and result of a line that is one large text but for its ends; None for others.

    Parsing it as a whole would take three times its size in memory.
    """
    begins = _TEXT_BEGINS.search(line, 0, EDGE_BYTES)
    end = _end_of_text(line)
    if begins is None or end - begins.end() < LEAST_BYTES - 2 * EDGE_BYTES:
        return None
    # With a mark in its place the rest is valid, and the text is valid by itself: so is the line.
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
    # Plans, and what is learned of a tool, read such a text as data: see `bridge.rpc.values`.
    if pieces is None or pieces[0].lstrip()[:1] in (b"", b"{", b"["):
        return None
    response[1]["content"] = [{**block, "text": LargeText(pieces)}]
    return response


def _end_of_text(line: bytes) -> int:
    """Return the place of the first quote near the end that no backslash escapes; -1 for none."""
    edge = line[-EDGE_BYTES:]
    at = edge.find(b'"')
    while at >= 0:
        backslashes = at - len(edge[:at].rstrip(b"\\"))
        if backslashes % 2 == 0 and backslashes < at:
            return len(line) - len(edge) + at
        at = edge.find(b'"', at + 1)
    return -1


def _decode_pieces(line: bytes, start: int, end: int) -> list[bytes] | None:
    """Return the text of a JSON string as UTF-8; None if it is invalid, or cannot be cut."""
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
    """Return a place at `end`, or shortly before it, that is not within a character."""
    for _ in range(3):
        if line[end] & 0xC0 == 0x80:
            end -= 1
    # Two halves of a character beyond Unicode's first plane.
    escape = line.rfind(b"\\", max(start, end - 12), end)
    if escape < 0:
        return end
    # Of several backslashes in a row the first is certain to begin an escape.
    end = start + len(line[start:escape].rstrip(b"\\"))
    return end - 6 if _FIRST_HALF.fullmatch(line, max(start, end - 6), end) else end
