"""The values that programs get for tool results, resources and prompts. Pure.

An MCP `CallToolResult` becomes its structured content if there is any; else its text, parsed if it
is an object or array in JSON or in Python's notation; binary content becomes a blob. A resource's
text is parsed only if its MIME type is JSON or missing. A prompt's text is for models and never
parsed. The guest turns these shapes into objects:

    {"json": value}                                    plain data
    {"blob": {"mimeType", "data", "uri", "name"}}      base64 content
    {"blocks": [shape, ...]}                           several content blocks
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence

from bridge.model import Json

MAX_PARSED_VALUES = 500_000
"""Most values of a text that is parsed: the JSON parser blocks the whole process."""

MAX_ERROR_TEXT = 16_000
"""Characters kept of a tool's own error message: enough for a stack trace, not for a page dump."""


def tool_error(result: Mapping[str, Json], clear: Callable[[str], str] | None = None) -> str | None:
    """Return the tool's error message, or None when the result is no error.

    Args:
        clear: Redacts secrets; applied before the message is cut.
    """
    if result.get("isError") is not True:
        return None
    texts = [
        block["text"]
        for block in _blocks(result)
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    ]
    message = "\n".join(texts).strip()
    if not message and result.get("structuredContent") is not None:
        message = json.dumps(result["structuredContent"], ensure_ascii=False)
    if not message:
        message = "The tool reported an error without saying which."
    if clear is not None:
        message = clear(message)
    if len(message) > MAX_ERROR_TEXT:
        message = f"{message[:MAX_ERROR_TEXT]} … ({len(message) - MAX_ERROR_TEXT} more characters)"
    return message


def wire_value(result: Mapping[str, Json], *, wrapped: bool = False) -> dict[str, Json]:
    """Return the shape that stands for a successful result.

    Args:
        wrapped: Whether the tool wraps results that are not objects; see `Tool.wraps_result`.
    """
    structured = result.get("structuredContent")
    if wrapped and isinstance(structured, Mapping) and structured.keys() == {"result"}:
        return {"json": structured["result"]}
    if structured is not None:
        return {"json": structured}
    shapes = [_block(block) for block in _blocks(result)]
    if not shapes:
        return {"json": None}
    if len(shapes) == 1:
        return shapes[0]
    return {"blocks": shapes}


def resource_value(result: Mapping[str, Json]) -> dict[str, Json]:
    """Return the shape of a resource's content, from a `ReadResourceResult`."""
    contents = result.get("contents")
    listed = contents if isinstance(contents, list) else []
    shapes = [_content(content) for content in listed if isinstance(content, dict)]
    if not shapes:
        return {"json": None}
    return shapes[0] if len(shapes) == 1 else {"blocks": shapes}


def prompt_value(result: Mapping[str, Json]) -> dict[str, Json]:
    """Return a prompt from a `GetPromptResult`; its messages' contents are shapes."""
    description, messages = result.get("description"), result.get("messages")
    listed = messages if isinstance(messages, list) else []
    return {
        "description": description if isinstance(description, str) else "",
        "messages": [_message(message) for message in listed if isinstance(message, dict)],
    }


def _message(message: Mapping[str, Json]) -> dict[str, Json]:
    role, content = message.get("role"), message.get("content")
    blocks = content if isinstance(content, list) else [content]
    shapes = [_spoken(block) for block in blocks if isinstance(block, dict)]
    return {
        "role": role if isinstance(role, str) else "",
        "content": shapes[0] if len(shapes) == 1 else {"blocks": shapes},
    }


def _spoken(block: Mapping[str, Json]) -> dict[str, Json]:
    if block.get("type") == "text":
        return {"json": block.get("text")}
    if block.get("type") == "resource" and isinstance(block.get("resource"), dict):
        return _content(block["resource"])
    return _block(block)


def _content(content: Mapping[str, Json]) -> dict[str, Json]:
    text = content.get("text")
    if not isinstance(text, str):
        return _blob(content, content.get("blob"))
    kind = content.get("mimeType")
    # A Markdown file may begin with a bracket.
    as_data = not isinstance(kind, str) or not kind or _is_json(kind)
    return {"json": _parsed(text) if as_data else text}


def _is_json(mime_type: str) -> bool:
    kind = mime_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _blocks(result: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    content = result.get("content")
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def _block(block: Mapping[str, Json]) -> dict[str, Json]:
    kind = block.get("type")
    if kind == "text":
        return {"json": _parsed(block.get("text"))}
    if kind in ("image", "audio"):
        return _blob(block, block.get("data"))
    if kind == "resource" and isinstance(block.get("resource"), dict):
        resource = block["resource"]
        if isinstance(resource.get("text"), str):
            return {"json": _parsed(resource["text"])}
        return _blob(resource, resource.get("blob"))
    # Resource links, and additions of later protocol versions, are passed on unchanged.
    return {"json": dict(block)}


def _blob(holder: Mapping[str, Json], data: Json) -> dict[str, Json]:
    blob: dict[str, Json] = {
        "mimeType": holder.get("mimeType") or "application/octet-stream",
        "data": data if isinstance(data, str) else "",
    }
    for key in ("uri", "name"):
        if isinstance(holder.get(key), str):
            blob[key] = holder[key]
    return {"blob": blob}


def _parsed(text: Json) -> Json:
    """Return `text` parsed, if it is an object or array in JSON or Python; else `text`.

    A bare number or string stays text: "007" and "true" are more often words than data. So does a
    text with more than `MAX_PARSED_VALUES`, which the program can parse itself.
    """
    if not isinstance(text, str) or text.lstrip()[:1] not in ("{", "["):
        return text
    if sum(map(text.count, ",[{")) > MAX_PARSED_VALUES:
        return text
    for read in (str, literal_as_json):
        try:
            return json.loads(read(text), parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            continue
    return text


def _refuse(token: str) -> None:
    # NaN and infinities are not JSON; passing them on would break the frame.
    raise ValueError(token)


def _finite(token: str) -> float:
    # 1e999 is JSON, but Python parses it as infinity.
    value = float(token)
    if math.isinf(value):
        raise ValueError(token)
    return value


# --- Python literals as JSON: many servers answer with `str` of a list of dicts -------------------
#
# Translated token by token, at the cost of parsing JSON. `ast.literal_eval` would build a syntax
# tree, which takes a hundred times the text's memory.

MAX_MARKS = 2_000_000
"""Most quotes and backslashes in a text. Each takes 100 bytes during the translation."""

_TOKEN = re.compile(
    r"""'([^'\\\n]*(?:\\.[^'\\\n]*)*)'|"([^"\\\n]*(?:\\.[^"\\\n]*)*)\""""
    r"""|(?<![\w.])([A-Za-z_]\w*)|['"\\]"""
)
"""The tokens that differ from JSON: strings and names. A lone quote is invalid."""

_NAMES = {"True": "true", "False": "false", "None": "null"}

_ESCAPE = re.compile(
    r"""\\(?:x([0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|U(000[1-9a-fA-F][0-9a-fA-F]{4}|0010[0-9a-fA-F]{4})|(.))|\""""
)

_SAME = frozenset('\\"nrtbf')
"""Escapes with the same meaning in both languages."""


def literal_as_json(text: str) -> str:
    """Return a Python literal of lists, dicts, strings and numbers as JSON.

    Any other text becomes invalid JSON or raises: names, calls, tuples, keys that are not strings.

    Raises:
        ValueError: It is certainly not such a literal, or has more than `MAX_MARKS`.
    """
    if sum(map(text.count, "'\"\\")) > MAX_MARKS:
        raise ValueError(f"it has more than {MAX_MARKS:,} quotes and backslashes")
    return _TOKEN.sub(_token, text)


def _token(match: re.Match[str]) -> str:
    single, double, name = match.groups()
    text = double if single is None else single
    if text is not None:
        return f'"{_ESCAPE.sub(_escape, text)}"' if "\\" in text or '"' in text else f'"{text}"'
    if name is not None and name in _NAMES:
        return _NAMES[name]
    raise ValueError(match[0])


def _escape(match: re.Match[str]) -> str:
    byte, wide, other = match.groups()
    if byte is not None:
        return f"\\u00{byte}"
    if wide is not None:
        # Unescaped: characters that JSON must escape are never beyond the first plane.
        return chr(int(wide, 16))
    if match[0] == '"':
        return '\\"'
    if other is None or other in _SAME:
        return match[0]
    if other == "'":
        return other
    raise ValueError(match[0])
