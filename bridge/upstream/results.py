"""What servers send as results, in the one form that the rest of the bridge reads. Pure.

Protocol: a `CallToolResult` has `content` (a list of blocks), `structuredContent`, `isError` and
`_meta`. Servers also send a text or one block as `content`, a bare list or text as the result, an
older `toolResult`, an error that is a text, and a response inside an array. All of these are
carried: `repair_response` makes a message that the SDK's models accept, `parse_result` its parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from mcp_types.jsonrpc import INTERNAL_ERROR, PARSE_ERROR
from pydantic_core import from_json, to_json

from bridge.model import Json

RAW = "mcp-code-bridge/raw"
"""The key of a result that is no object: JSON-RPC's models take objects only."""

EXCERPT_CHARACTERS = 300  # Of a body in messages.

_TAGS = re.compile(r"(?s)<(script|style)\b.*?</\1\s*>|<[^<>]*>")

NO_MESSAGE = "The server's answer is not a JSON-RPC message."


def excerpt(body: bytes) -> str:
    """Return the first `EXCERPT_CHARACTERS` of a body, without tags and line ends."""
    text = body[: 64 * 1024].decode("utf-8", "replace")
    if text.lstrip().startswith("<"):
        text = _TAGS.sub(" ", text)
    return " ".join(text.split())[:EXCERPT_CHARACTERS]


_TRUE = frozenset(("true", "1", "yes"))


def parse_result(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return a call's result with a list of blocks as `content`; other fields are unchanged."""
    value: Json = answer.get(RAW, answer)
    if not isinstance(value, Mapping):
        return _of_value(value)
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


def _of_value(value: Json) -> dict[str, Json]:
    """Return the result that a bare value stands for."""
    if value is None:
        return {"content": []}
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    if isinstance(value, list) and all(map(_is_block, value)):
        return {"content": value}
    return {"content": [], "structuredContent": value}


def _is_block(item: Json) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    # A text may be a `LargeText`.
    return isinstance(kind, str) and (kind != "text" or not isinstance(item.get("text"), _NO_TEXTS))


_NO_TEXTS = (type(None), bool, int, float, list, dict)


def _block(item: Json) -> dict[str, Json]:
    """Return the block that an item of `content` stands for: a text, or one without its type."""
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
    """Return a response in JSON-RPC's form; None for a document that is no response.

    A result that is no object is wrapped (`RAW`), and an error that is no object gets a code.

    Args:
        answers: The id of the request that the document answers, whatever the document's own.
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

    Args:
        unreadable: Makes a message of data that is not JSON, or not a message.
        answers: The id of the request that the message answers; None if it may be any message.
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
