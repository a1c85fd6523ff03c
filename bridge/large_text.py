"""A large text of a tool result, held in pieces rather than as one `str`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LargeText:
    """A text as UTF-8, in pieces of whole characters.

    Not a `str`, so that code must ask for the whole text with `str()`.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __sizeof__(self) -> int:
        return self._size

    def __str__(self) -> str:
        return b"".join(self.pieces).decode()


def with_plain_text(result: dict[str, Any]) -> dict[str, Any]:
    """Return a tool result with each `LargeText` of its content as a `str`."""
    content = result.get("content")
    if not isinstance(content, list) or not any(map(_is_large, content)):
        return result
    plain = [
        {**block, "text": str(block["text"])} if _is_large(block) else block for block in content
    ]
    return {**result, "content": plain}


def _is_large(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("text"), LargeText)
