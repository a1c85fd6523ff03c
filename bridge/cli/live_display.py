"""Shows a run at a terminal while it is running: its output, and below it a line with its status.

Owns the two streams of the terminal. Output is written to the stream that the program wrote it to:
unchanged, but to a terminal without control characters. The status line is on stderr, only if that
is a terminal and only below a whole line of output, and is erased before anything else is written.
So only the output remains on the screen, whether both streams go to it or not. While a question is
open, no output is written; it waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import BinaryIO, TextIO

import anyio
import anyio.to_thread

from bridge.callers.progress import RunProgress, told
from bridge.cli.status import StatusLine, hidden
from bridge.cli.terminal import Terminal
from bridge.model import Json
from bridge.tasks import background_task
from bridge.text import VisibleDecoder

MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Of a program's output that its reader, such as a pager, has not read yet, or that waits for the
answer to a question. With more the program waits, and its time limit continues, as with coreutils'
`timeout`."""

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
        self._queue: list[tuple[str, bytes]] = []
        self._sent = self._written = 0  # Bytes.
        self._writing = False
        self._changed = anyio.Event()
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
        """Queue output; wait while the queue is full."""
        await self._until(self._sent - MAX_QUEUED_BYTES + 1)
        self._queue.append((stream, data))
        self._sent += len(data)
        self._notify()

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        self._note = told(message, 120)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask, after all output until now has been written and without a status line."""
        if self._writing:
            await self._until(self._sent)
        # A program that keeps writing does not delay the question: the lock is fair.
        async with self._screen:
            with hidden():
                return await super().elicit(params)

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Write output and draw while this is open; all output is written before it closes."""
        async with AsyncExitStack() as stack:
            if self._line is not None:
                stack.enter_context(self._line)
            await stack.enter_async_context(background_task(self._write))
            self._writing = True
            try:
                yield
            except Exception:
                # The output until the error is written all the same.
                await self._finish()
                raise
            finally:
                self._writing = False
            await self._finish()

    async def _finish(self) -> None:
        """Write all output, including incomplete characters in the decoders."""
        await self._until(self._sent)
        for name, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True).encode("utf-8", "replace")
            if rest:
                await anyio.to_thread.run_sync(_write_flushed, self._streams[name], rest)

    async def _until(self, written: int) -> None:
        while self._written < written:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _write(self) -> None:
        while True:
            while not self._queue:
                await self._changed.wait()
            async with self._screen:
                pieces, self._queue = self._queue, []
                # Abandoned on an interrupt: a reader that does not read must not block it.
                await anyio.to_thread.run_sync(self._write_now, pieces, abandon_on_cancel=True)
            self._written += sum(len(data) for _, data in pieces)
            self._notify()

    def _write_now(self, pieces: list[tuple[str, bytes]]) -> None:
        for name, data in pieces:
            decoder = self._decoders.get(name)
            if decoder is None:
                _write_flushed(self._streams[name], data)
                continue
            shown = decoder.decode(data).encode("utf-8", "backslashreplace")
            with hidden():
                _write_flushed(self._streams[name], shown)
                if shown:
                    # A program's own bar ends with a return, and must not be overwritten.
                    self._at_line_start = shown.endswith(b"\n")


def _write_flushed(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


def status_text(run_progress: RunProgress, seconds: float, note: str = "") -> str:
    """Return the status line: a bar if the program reports progress, the time, the calls. Pure."""
    whole = int(seconds)
    time = f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"
    parts = [time, run_progress.own_text(), run_progress.call_text(), note]
    text = " · ".join(part for part in parts if part)
    share = run_progress.share
    if share is not None:
        full = round(share * _BAR)
        text = f"{'━' * full}{'╌' * (_BAR - full)} {int(share * 100):3d}% {text}"
    return text
