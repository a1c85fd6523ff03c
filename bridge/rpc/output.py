"""What a program wrote, kept within a bound.

The guest already drops the middle of an overlong stream and says how much. Since the guest may lie,
the host bounds what it keeps by itself.
"""

from __future__ import annotations


class OutputBuffer:
    """The text of one stream, at most `limit` bytes of it, and how much is missing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._kept = 0
        self.dropped = 0

    def append(self, text: str, skipped: int = 0) -> None:
        """Add text that followed `skipped` bytes which the guest dropped."""
        if skipped > 0:
            self.dropped += skipped
            self._parts.append(f"\n[… {skipped:,} bytes dropped …]\n")
        data = text.encode("utf-8", "replace")
        room = self._limit - self._kept
        if len(data) <= room:
            self._parts.append(text)
            self._kept += len(data)
            return
        # Cutting inside a character leaves bytes that do not decode; they count as dropped.
        kept = data[:room].decode("utf-8", "ignore")
        self._parts.append(kept)
        self.dropped += len(data) - len(kept.encode("utf-8"))
        self._kept = self._limit

    def text(self) -> str:
        """Return what was kept, with a notice where the middle is missing."""
        return "".join(self._parts)
