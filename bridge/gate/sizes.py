"""How large an answer of a server is. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bridge.model import Json

LARGE_CHARACTERS = 64 * 1024
"""A text from here on is not counted as JSON, with what that escapes, but as it is."""

# What comes from JSON has no circles, and to look for them is half of the work.
_TEXT = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def result_size(result: Mapping[str, Json], part: str = "content") -> int:
    """Return the bytes of text that `result` would have put into a conversation.

    Args:
        part: Where its content is. Data that comes without any is counted instead.
    """
    content = result.get(part) or result.get("structuredContent") or []
    large = 0
    if isinstance(content, list):
        small = []
        for block in content:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str) and len(text) >= LARGE_CHARACTERS:
                # Counted as it is: to write it as JSON only to count takes as long as to move it.
                large += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                small.append({**block, "text": ""})
            else:
                small.append(block)
        content = small
    return large + len(_TEXT.encode(content).encode("utf-8", "replace"))
