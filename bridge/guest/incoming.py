"""What the host sends while a program runs: the worker's, but for a few lines.

Owns telling the two apart, in bytes that come in any portions. It follows the framing of replies
(see `replies`): a text beside a reply may hold any line that a server or the program thought of,
and is nobody's frame. The host is trusted: what it sends is taken as it is.
"""

from __future__ import annotations

from bridge.guest.wire import Clock, Stop, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional

_CLOCK = {encode(Clock(running=on)).rstrip(b"\n"): on for on in (True, False)}
_STOP = encode(Stop()).rstrip(b"\n")
"""The lines that are not the worker's; and neither is a session's next run."""

_HEADS = (b'{"type":"clock",', _STOP)
_RUN = b'{"type":"run",'
_LONGEST = max(map(len, (*_HEADS, _RUN)))
_BESIDE = b"+"


class Incoming:
    """Bytes from the host to bytes for the worker. Large ones are looked at, not copied.

    Args:
        on_clock: Called when the run's time stops (False) or goes on (True).
        on_stop: Called when the run is to be interrupted.

    Attributes:
        runs: Lines of runs that have come, to be taken away by whoever starts them.
    """

    def __init__(
        self,
        on_clock: Callable[[bool], None],
        on_stop: Optional[Callable[[], None]] = None,
    ) -> None:
        self._on_clock = on_clock
        self._on_stop = on_stop
        self._run: Optional[List[bytes]] = None
        self.runs: List[bytes] = []
        self._text = 0
        self._inside = False
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what of `data`, and of what was held back before, is the worker's."""
        if self._held:
            data, self._held = self._held + data, b""
        size = len(data)
        kept: List[bytes] = []
        start = begin = 0
        while start < size:
            if self._text:
                step = min(self._text, size - start)
                self._text -= step
                start += step
                continue
            end = data.find(b"\n", start)
            begins = not self._inside and data.startswith(_RUN, start)
            if self._run is not None or begins:
                kept.append(data[begin:start])
                begin = start = self._take_run(data, start, end)
                continue
            if self._inside or not _is_short(data[start : start + _LONGEST]):
                self._inside = end < 0
                start = size if end < 0 else end + 1
                continue
            if end < 0:
                # A few bytes, until its end tells what it is.
                self._held = data[start:]
                break
            line = data[start:end]
            if line.startswith(_BESIDE):
                self._text = int(line)
            elif line in _CLOCK or line == _STOP:
                kept.append(data[begin:start])
                begin = end + 1
                self._tell(line)
            start = end + 1
        if not begin and not self._held:
            return data
        kept.append(data[begin : size - len(self._held)])
        return b"".join(kept)

    def _take_run(self, data: bytes, start: int, end: int) -> int:
        """Take what there is of a run's line; return where that ends."""
        parts = self._run = [] if self._run is None else self._run
        parts.append(data[start:] if end < 0 else data[start:end])
        if end < 0:
            return len(data)
        self.runs.append(b"".join(parts))
        self._run = None
        return end + 1

    def _tell(self, line: bytes) -> None:
        if line in _CLOCK:
            self._on_clock(_CLOCK[line])
        elif self._on_stop is not None:
            self._on_stop()


def _is_short(head: bytes) -> bool:
    """Tell whether a line that begins so is, or may become, one that has to be seen whole."""
    if head.startswith((_BESIDE, *_HEADS)):
        return True
    return any(known.startswith(head) for known in (*_HEADS, _RUN))
