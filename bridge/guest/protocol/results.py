"""The parts of a call's result, and the value that programs get for it. Pure.

The host sends these parts (`bridge.rpc.values.call_parts`). `text` is the only block, if that is a
plain text; else `content` has the blocks as the server sent them. `value` is the structure, or the
value that it wraps. `key` is the structure's only key, if it wraps a value or repeats the blocks.
`meta` is the server's `_meta`; `several` means that the tool once sent several texts.

The value is the first of: `value`; the text that a structure repeats, unchanged; the blocks. A
single text is parsed if it is an object or array in JSON or in Python's notation. One block is its
value; several blocks are a list. A tool that once sent several texts always returns a list.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match
    from typing import Any, Callable, Dict, List, Mapping

    Block = Mapping[str, Any]
    Parts = Mapping[str, Any]

MAX_PARSED_VALUES = 500_000
"""Most values of a server's text that is parsed: a parser blocks the whole process."""


def blocks_of(parts: Parts) -> List[Dict[str, Any]]:
    if "text" in parts:
        return [{"type": "text", "text": parts["text"]}]
    content: List[Dict[str, Any]] = parts.get("content") or []
    return content


def is_single(parts: Parts) -> bool:
    return not parts.get("several") and ("text" in parts or len(parts.get("content") or ()) == 1)


def repeated_text(parts: Parts) -> Any:
    """Return the text that the structure repeats, which is the value; None without one."""
    blocks = blocks_of(parts) if "key" in parts and "value" not in parts else ()
    return text_of(blocks[0]) if len(blocks) == 1 else None


def resource_of(block: Block) -> Block:
    """Return the resource that a block embeds; the block itself if it embeds none."""
    inner = block.get("resource")
    return inner if block.get("type") == "resource" and isinstance(inner, dict) else block


def text_of(block: Block) -> Any:
    """Return the text of a block or of its resource; None without text."""
    holder = resource_of(block)
    if holder is block and block.get("type") != "text":
        return None
    text = holder.get("text")
    return text if isinstance(text, str) else None


def source_text(parts: Parts) -> str:
    """Return the texts of all blocks, as the server sent them."""
    texts = [text for text in map(text_of, blocks_of(parts)) if text is not None]
    return texts[0] if len(texts) == 1 else "\n".join(texts)


def structure_of(parts: Parts) -> Any:
    """Return the structured content as the server sent it, or None."""
    if "key" not in parts:
        return parts.get("value")
    repeated = repeated_text(parts)
    other = parts.get("content") if repeated is None else repeated
    return {parts["key"]: parts.get("value", other)}


def block_value(block: Block, loads: Callable[[str], Any]) -> Any:
    """Return the value of a block that is not binary: its text, parsed; else the block itself."""
    text = text_of(block)
    if text is None:
        return block
    holder = resource_of(block)
    kind = holder.get("mimeType")
    # A Markdown file may begin with a bracket.
    is_data = holder is block or not isinstance(kind, str) or not kind or _is_json(kind)
    return parse_text(text, loads) if is_data else text


def binary_data(block: Block) -> Any:
    """Return the base64 data of a picture, a sound or a binary resource; None for other blocks."""
    holder = resource_of(block)
    kind = block.get("type")
    if holder is not block:
        return None if isinstance(holder.get("text"), str) else holder.get("blob")
    return block.get("data") if kind in ("image", "audio") else None


def parse_text(text: str, loads: Callable[[str], Any]) -> Any:
    """Return `text` parsed, if it is an object or array in JSON or Python; else `text`."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    if sum(map(text.count, ",[{")) > MAX_PARSED_VALUES:
        return text
    try:
        return loads(text)
    except (ValueError, RecursionError):
        pass
    if sum(map(text.count, "'\"\\")) > 4 * MAX_PARSED_VALUES:
        # Quotes and backslashes take 100 bytes each in the translation.
        return text
    try:
        return loads(literal_as_json(text))
    except (ValueError, RecursionError):
        return text


def _is_json(mime_type: str) -> bool:
    kind = mime_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def literal_as_json(text: str) -> str:
    """Return a Python literal of lists, dicts, strings and numbers as JSON.

    A literal is translated token by token, at the cost of parsing JSON. `ast.literal_eval` would
    build a syntax tree, which takes a hundred times the text's memory. Any other text becomes
    invalid JSON or raises ValueError: names, calls, tuples, keys that are not strings.
    """
    import re  # takes long, and few servers send literals

    same = frozenset('\\"nrtbf')  # Escapes with the same meaning in both languages.
    names = {"True": "true", "False": "false", "None": "null"}
    escapes = re.compile(
        r"""\\(?:x([0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|U(000[1-9a-fA-F][0-9a-fA-F]{4}|0010[0-9a-fA-F]{4})|(.))|\""""
    )

    def escape(match: Match[str]) -> str:
        byte, wide, other = match.groups()
        if byte is not None:
            return f"\\u00{byte}"
        if wide is not None:
            # Unescaped: characters that JSON must escape are never beyond the first plane.
            return chr(int(wide, 16))
        if match[0] == '"':
            return '\\"'
        if other is None or other in same:
            return match[0]
        if other == "'":
            return other
        raise ValueError(match[0])

    def translate(match: Match[str]) -> str:
        single, double, name = match.groups()
        text = double if single is None else single
        if text is not None:
            return f'"{escapes.sub(escape, text)}"' if "\\" in text or '"' in text else f'"{text}"'
        if name in names:
            return names[name]
        raise ValueError(match[0])

    # Only strings and names differ from JSON. A single quote alone is invalid.
    return re.sub(
        r"""'([^'\\\n]*(?:\\.[^'\\\n]*)*)'|"([^"\\\n]*(?:\\.[^"\\\n]*)*)\""""
        r"""|(?<![\w.])([A-Za-z_]\w*)|['"\\]""",
        translate,
        text,
    )
