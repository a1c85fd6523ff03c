"""A large text of a tool's result, which is passed on without being one `str` in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LargeText:
    """A text as UTF-8, in pieces of whole characters.

    It is no `str`, so that nothing takes its place unseen: what looks at texts asks for `str()`.
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
    """Return a tool's result with each `LargeText` of its content as a `str`."""
    content = result.get("content")
    if not isinstance(content, list) or not any(map(_is_large, content)):
        return result
    plain = [
        {**block, "text": str(block["text"])} if _is_large(block) else block for block in content
    ]
    return {**result, "content": plain}


def _is_large(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("text"), LargeText)
