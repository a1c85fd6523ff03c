"""Converts tool results, resources and prompts into the values that programs get. Pure.

A tool's result and a resource become their parts, of which the guest makes a value; see
`bridge.guest.protocol.results`. On the host, plans and the learning of result types need the value
itself, as a shape:

    {"json": value}                                    plain data
    {"blob": {"mimeType", "data", "uri", "name"}}      base64 content
    {"blocks": [shape, ...]}                           several content blocks
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from bridge.guest.protocol import results
from bridge.model import Json


def tool_error(result: Mapping[str, Json], clear: Callable[[str], str] | None = None) -> str | None:
    """Return the tool's error message, redacted by `clear`; None when the result is no error."""
    if result.get("isError") is not True:
        return None
    blocks = _blocks(result)
    message = "\n".join(text for text in map(results.text_of, blocks) if text is not None).strip()
    if not message and result.get("structuredContent") is not None:
        message = json.dumps(result["structuredContent"], ensure_ascii=False)
    if not message and blocks:
        kinds = ", ".join(f"{block.get('type')!s:.40}" for block in blocks[:8])
        message = f"The tool reported an error without a text. `.content` has its blocks: {kinds}."
    if not message:
        message = "The tool reported an error without saying which."
    if clear is not None:
        # Half a secret at the cut would not be recognized.
        message = clear(message)
    # Enough for a stack trace of a server, not for a page dump.
    if rest := message[16_000:]:
        message = f"{message[:16_000]} … ({len(rest)} more characters)"
    return message


def call_parts(
    result: Mapping[str, Json], *, wraps: bool = False, several: bool = False
) -> dict[str, Json]:
    """Return the parts of a successful result, as `bridge.upstream.framing.parse_result` gives it.

    `several` says whether the tool has sent several texts before; for `wraps` see `Tool`.
    """
    blocks, structure = _blocks(result), result.get("structuredContent")
    parts: dict[str, Json] = {}
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and blocks[0]["type"] == "text":
        parts["text"] = blocks[0]["text"]
    else:
        parts["content"] = blocks
    if isinstance(structure, Mapping) and len(structure) == 1:
        ((key, inner),) = structure.items()
        only = results.text_of(blocks[0]) if len(blocks) == 1 else None
        if blocks and (inner == blocks or (only is not None and inner == only)):
            parts["key"] = key
        elif wraps and key == "result":
            parts |= {"key": key, "value": inner}
        else:
            parts["value"] = structure
    elif structure is not None:
        parts["value"] = structure
    if result.get("_meta"):
        parts["meta"] = result["_meta"]
    texts = sum(results.text_of(block) is not None for block in blocks)
    if several or (texts > 1 and structure is None):
        parts["several"] = True
    return {"parts": parts}


def resource_value(result: Mapping[str, Json]) -> dict[str, Json]:
    contents = result.get("contents")
    listed = contents if isinstance(contents, list) else []
    blocks = [{"type": "resource", "resource": one} for one in listed if isinstance(one, dict)]
    return {"parts": {"content": blocks}}


def prompt_value(result: Mapping[str, Json]) -> dict[str, Json]:
    """Return a prompt, of which texts are never parsed: they are for models."""
    description, messages = result.get("description"), result.get("messages")
    listed = messages if isinstance(messages, list) else []
    return {
        "description": description if isinstance(description, str) else "",
        "messages": [_message(message) for message in listed if isinstance(message, dict)],
    }


def _message(message: Mapping[str, Json]) -> dict[str, Json]:
    role, content = message.get("role"), message.get("content")
    blocks = content if isinstance(content, list) else [content]
    parts = [_spoken_text(block) for block in blocks if isinstance(block, dict)]
    return {
        "role": role if isinstance(role, str) else "",
        "content": parts[0] if len(parts) == 1 else {"blocks": parts},
    }


def _spoken_text(block: Mapping[str, Json]) -> dict[str, Json]:
    if block.get("type") == "text":
        return {"json": block.get("text")}
    return {"parts": {"content": [block]}}


def shape_value(wire: Mapping[str, Json]) -> dict[str, Json]:
    """Return the shape of the value that a program gets for `call_parts`."""
    parts = wire["parts"]
    if "value" in parts:
        return {"json": parts["value"]}
    if (text := results.repeated_text(parts)) is not None:
        return {"json": text}
    shapes = [_shape(block) for block in results.blocks_of(parts)]
    if not shapes:
        return {"json": []}
    return shapes[0] if results.is_single(parts) else {"blocks": shapes}


def _shape(block: Mapping[str, Json]) -> dict[str, Json]:
    data = results.binary_data(block)
    if not isinstance(data, str):
        return {"json": results.block_value(block, json.loads)}
    holder = results.resource_of(block)
    blob: dict[str, Json] = {
        "mimeType": holder.get("mimeType") or "application/octet-stream",
        "data": data,
    }
    blob |= {key: holder[key] for key in ("uri", "name") if isinstance(holder.get(key), str)}
    return {"blob": blob}


def _blocks(result: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    content = result.get("content")
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]
