"""What is shown of a program's output, and what is only kept.

Owns the bounds: on what is held in memory of a stream, on what of it a model is shown, and on what
is passed on to be kept. Bytes in, bytes out; where those that are kept go is somebody else's
business. What a guest sends may be anything, and as much as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.text import counted
from bridge.tokens import count_tokens

MAX_LINES = 50_000
"""Lines shown of a run's output. Structured content lists them one by one, which takes clients
seconds when the limit in tokens alone would allow a million empty ones."""

MAX_GAPS = 16
"""Gaps shown in one stream. The guest announces one; more come from code that forges frames, and
each would be text beyond the limit."""

MEMORY_BYTES = 128 * 1024
"""Held of a stream's beginning before the rest goes on to be kept; half as much of its end."""

OUTPUT_BYTES = 32 * 1024 * 1024
"""Kept of a stream at most, whatever its guest was told to send."""

_BYTES_PER_TOKEN = 8
"""More than text has of them, but for rows of equal characters, of which less is shown then."""

_WHOLE_LINES_WITHIN = 2048
"""A cut is moved to the end of a line if there is one so near."""


def cost(data: bytes | bytearray) -> int:
    """Return what text costs a model, in tokens, about."""
    return count_tokens(data.decode("utf-8", "replace"))


def shares(costs: Sequence[float], most: float) -> list[float]:
    """Return what each of two streams may cost, of what both may: who needs less leaves the rest.

    Who needs less than half gets all it needs.
    """
    first, second = costs
    if first + second <= most:
        return [first, second]
    half = most / 2
    if first <= half:
        return [first, most - first]
    if second <= half:
        return [most - second, second]
    return [half, half]


def as_bytes(text: str) -> bytes:
    """Return what a program wrote, from the text that it travels as.

    Bytes that are no UTF-8 travel as lone surrogates, one each, as Python reads file names.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Others come from a guest that forges frames, and fail whoever writes them.
        return text.encode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What is shown of a stream.

    Attributes:
        head, tail: Its beginning and its end; where nothing is cut, all of it is the head.
        is_cut: Whether something was kept and is not shown.
        left_out: Bytes that are not shown.
        lines: Ends of lines among them; -1 if nobody knows, because they were never seen.
    """

    head: bytes
    tail: bytes = b""
    is_cut: bool = False
    left_out: int = 0
    lines: int = 0

    def text(self, notice: str = "") -> str:
        """Return it as text, with a line about the cut."""
        head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
        if not notice:
            return head + tail
        before = "" if not head or head.endswith("\n") else "\n"
        return f"{head}{before}[… {notice} …]\n{tail}"


def cut_notice(ends: Ends, *, dropped: int = 0, kept: bool = False) -> str:
    """Return what is said where a stream is cut.

    Args:
        dropped: Bytes among those left out that were not kept either.
        kept: Whether the others were. The result says how to read them.
    """
    amount = f"{ends.left_out:,} bytes"
    if ends.lines > 0:
        amount = f"{counted(ends.lines, 'line')} ({amount})"
    if not kept:
        return f"{amount} dropped"
    lost = f", {dropped:,} of them dropped" if dropped else ""
    return f"{amount} not shown here{lost}"


class OutputBuffer:
    """One stream: its beginning and its end, and how much there was.

    Args:
        limit: Bytes taken in; what comes beyond is dropped.
        memory: Bytes of the beginning that are held.

    Attributes:
        dropped: Bytes that were not kept: by the guest, or beyond the limit.
    """

    def __init__(self, limit: int = OUTPUT_BYTES, memory: int = MEMORY_BYTES) -> None:
        self._room = limit
        self._memory = memory
        self._start = bytearray()
        self._end = bytearray()
        self._end_lost = 0
        self._size = 0
        self._lines = 0
        self._gaps: list[tuple[int, int]] = []
        self.dropped = 0

    def append(self, data: bytes, skipped: int = 0) -> bytes:
        """Add what followed `skipped` bytes that the guest dropped; return what is to be kept now.

        That is nothing as long as all there is is held here: see `start`.
        """
        gap = b""
        if skipped > 0:
            self.dropped += skipped
            if len(self._gaps) < MAX_GAPS:
                gap = f"\n[… {skipped:,} bytes dropped …]\n".encode()
                self._gaps.append((self._size, len(gap)))
        taken = data[: self._room]
        self._room -= len(taken)
        self.dropped += len(data) - len(taken)
        return self._add(gap + taken if gap else taken)

    @property
    def start(self) -> bytes:
        """The beginning."""
        return bytes(self._start)

    @property
    def is_whole(self) -> bool:
        """Whether all that was taken in is held here."""
        return self._size == len(self._start)

    def cost(self, most: float) -> int:
        """Return what all of it would cost, in tokens; where that is more than `most`, more."""
        size = int(most * _BYTES_PER_TOKEN)
        beginning = cost(self._start[:size])
        # Most text costs more by then, and need not be read to its end.
        if beginning > most or size >= len(self._start):
            return beginning
        return cost(self._start)

    def _add(self, data: bytes) -> bytes:
        was_whole = self.is_whole
        self._size += len(data)
        self._lines += data.count(b"\n")
        room = self._memory - len(self._start)
        if was_whole and len(data) <= room:
            self._start += data
            return b""
        before = b""
        if was_whole:
            before = bytes(self._start)
            self._start += data[:room]
            self._end += data[room:]
        else:
            self._end += data
        excess = len(self._end) - self._memory // 2
        # At twice the size only, so that each byte is moved once on average.
        if excess > self._memory // 2:
            del self._end[:excess]
            self._end_lost += excess
        return before + data

    def shown(self, most: float, lines: int = MAX_LINES) -> Ends:
        """Return what is shown if that may cost `most` tokens and have so many lines."""
        start, end = bytes(self._start), bytes(self._end)
        if self.is_whole and cost(start) <= most and self._lines <= lines:
            return Ends(head=start, left_out=self.dropped)
        if not self._end_lost:
            # Without anything missing in between an end may reach further back.
            start = end = start + end
        head = start[: _fitting(start, most / 2, lines // 2)]
        tail = end[len(end) - _fitting(end, most / 2, lines // 2, at_end=True) :]
        # What is shown twice would be counted twice.
        overlap = len(head) + len(tail) - self._size
        tail = tail[max(0, overlap) :]
        before = len(end) - len(tail)
        begins_a_line = end[max(0, before - 1) : before] == b"\n"
        return self._ends(_whole_head(head), tail if begins_a_line else _whole_tail(tail))

    def _ends(self, head: bytes, tail: bytes) -> Ends:
        shown = len(head) + len(tail)
        tail_at = self._size - len(tail)
        # Notices of gaps are no output: of those that are left out nothing is missing.
        notices = sum(
            max(0, min(at + size, tail_at) - max(at, len(head))) for at, size in self._gaps
        )
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        return Ends(
            head=head,
            tail=tail,
            is_cut=True,
            left_out=self._size - shown - notices + self.dropped,
            lines=-1 if self.dropped else lines,
        )


def _fitting(data: bytes, most: float, lines: int, *, at_end: bool = False) -> int:
    """Return how much of the beginning of `data`, or of its end, fits."""

    def part(size: int) -> bytes:
        return data[len(data) - size :] if at_end else data[:size]

    size = min(len(data), int(most * _BYTES_PER_TOKEN))
    while size and (tokens := cost(part(size))) > most:
        # What is left costs as much a byte as all of it, about; else it is tried again.
        size = min(size - 1, int(size * most / tokens))
    kept = part(size).split(b"\n")
    if len(kept) <= lines + 1:
        return size
    if not lines:
        return 0
    return len(b"\n".join(kept[-lines - 1 :] if at_end else kept[:lines])) + (not at_end)


def _whole_head(head: bytes) -> bytes:
    """Return a head that ends with a line, if that is near, or with a character."""
    end = head.rfind(b"\n", max(0, len(head) - _WHOLE_LINES_WITHIN)) + 1
    if end:
        return head[:end]
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 != 0x80:
            # A character that needs more bytes than there are begins here.
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return head[:-back] if needed > back else head
    return head


def _whole_tail(tail: bytes) -> bytes:
    """Return a tail that begins with a line, if that is near, or with a character."""
    start = tail.find(b"\n", 0, _WHOLE_LINES_WITHIN) + 1
    if start and start < len(tail):
        return tail[start:]
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return tail[start:]
