"""What a program wrote, kept within a bound.

The guest already drops the middle of an overlong stream and says how much. Since the guest may lie,
the host bounds what it keeps by itself.
"""

from __future__ import annotations

MAX_LINES = 50_000
"""Lines kept of a stream. Structured content lists them one by one, which takes clients seconds
when the limit in bytes alone would allow a quarter of a million empty ones."""

MAX_GAPS = 16
"""Gaps shown in one stream. The guest announces one; more come from code that forges frames, and
each would be text beyond the limit."""


class OutputBuffer:
    """The text of one stream, at most `limit` bytes of it, and how much is missing."""

    def __init__(self, limit: int, max_lines: int = MAX_LINES) -> None:
        self._room = limit
        self._lines = max_lines
        self._parts: list[str] = []
        self._gaps = 0
        self.dropped = 0

    def append(self, text: str, skipped: int = 0) -> None:
        """Add text that followed `skipped` bytes which the guest dropped."""
        if skipped > 0:
            self.dropped += skipped
            self._gaps += 1
        if skipped > 0 and self._gaps <= MAX_GAPS:
            self._parts.append(f"\n[… {skipped:,} bytes dropped …]\n")
        if not text:
            return
        # A guest that forges frames may send lone surrogates, which fail whoever writes them.
        data = text.encode("utf-8", "replace")
        kept = self._within_bounds(data)
        if len(kept) == len(data):
            self._parts.append(data.decode("utf-8"))
        else:
            # Cutting inside a character leaves bytes that do not decode; they count as dropped.
            shown = kept.decode("utf-8", "ignore")
            self._parts += [shown] if shown else []
            self.dropped += len(data) - len(shown.encode("utf-8"))
            self._room = 0
        self._room -= min(self._room, len(kept))
        self._lines -= kept.count(b"\n")

    def _within_bounds(self, data: bytes) -> bytes:
        kept = data[: self._room]
        if kept.count(b"\n") <= self._lines:
            return kept
        lines = kept.split(b"\n", self._lines)
        return kept[: len(kept) - len(lines[-1])]

    def text(self) -> str:
        """Return what was kept, with a notice where the middle is missing."""
        return "".join(self._parts)
