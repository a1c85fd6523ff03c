"""Shows a run at a terminal while it is running: its output, and below it a line with its status.

The program's output goes to the stream that it was written to, and keeps its control characters
only if that is no terminal. A program waits until its output is read, as in any pipe. The status
line is below a whole line of output, and is erased before anything else is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from time import monotonic
from typing import BinaryIO, TextIO

import anyio
import anyio.to_thread

from bridge.callers.progress import RunProgress, told
from bridge.cli.status import StatusLine, hidden
from bridge.cli.terminal import Terminal
from bridge.model import Json
from bridge.text import VisibleDecoder

_BAR = 20  # Columns.


class LiveTerminal(Terminal):
    """A terminal that shows a run's output and status while `streaming` is open.

    Args:
        reader, writer: Where questions are answered and asked.
        shows: Whether to draw a status line.
        out, err: Destinations of the program's streams.
        drawn: Whether the terminal supports attributes, which mark the bridge's own lines.
    """

    def __init__(
        self,
        reader: TextIO,
        writer: TextIO,
        *,
        shows: bool,
        out: BinaryIO,
        err: BinaryIO,
        drawn: bool = True,
    ) -> None:
        super().__init__(reader, writer, drawn=drawn)
        self.run_progress: RunProgress | None = None
        self._line = StatusLine(writer, self._status) if shows else None
        self._started = 0.0
        self._at_line_start = True
        self._note = ""
        self._streams = {"stdout": out, "stderr": err}
        self._decoders = {
            name: VisibleDecoder() for name, stream in self._streams.items() if stream.isatty()
        }
        self._screen = anyio.Lock()

    @property
    def wants_progress(self) -> bool:
        return self._line is not None

    def follow(self, run_progress: RunProgress) -> None:
        self.run_progress, self._started, self._note = run_progress, monotonic(), ""

    def _status(self) -> str:
        """Return the status line; empty if a run is short, or the output's last line not whole."""
        if self.run_progress is None:
            return self._note or "starting a sandbox"
        seconds = monotonic() - self._started
        if not self._at_line_start or seconds < 0.6:
            return ""
        return status_text(self.run_progress, seconds, self._note)

    async def wrote(self, stream: str, data: bytes) -> None:
        """Write output; wait for its reader, and until no question is open."""
        # The lock is fair: a program that keeps writing does not delay a question.
        async with self._screen:
            # Abandoned on an interrupt: a reader that does not read must not block it.
            await anyio.to_thread.run_sync(self._write, stream, data, abandon_on_cancel=True)

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        self._note = told(message, 120)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask without a status line; output that was written before comes before."""
        async with self._screen:
            with hidden():
                return await super().elicit(params)

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Draw while this is open; incomplete characters are written when it closes."""
        with self._line or nullcontext():
            try:
                yield
            finally:
                for name in self._decoders:
                    await anyio.to_thread.run_sync(self._write, name, b"", True)

    def _write(self, name: str, data: bytes, final: bool = False) -> None:
        stream, decoder = self._streams[name], self._decoders.get(name)
        if decoder is not None:
            data = decoder.decode(data, final=final).encode("utf-8", "backslashreplace")
        with hidden() if decoder is not None else nullcontext():
            stream.write(data)
            stream.flush()
            if decoder is not None and data:
                # A program's own bar ends with a return, and must not be overwritten.
                self._at_line_start = data.endswith(b"\n")


def status_text(run_progress: RunProgress, seconds: float, note: str = "") -> str:
    whole = int(seconds)
    time = f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"
    parts = [time, run_progress.own_text(), run_progress.call_text(), note]
    text = " · ".join(part for part in parts if part)
    share = run_progress.share
    if share is not None:
        full = round(share * _BAR)
        text = f"{'━' * full}{'╌' * (_BAR - full)} {int(share * 100):3d}% {text}"
    return text
