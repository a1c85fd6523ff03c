"""Shows a run at a terminal while it is running: its output, and below it a line with its status.

Owns the two streams of the terminal. Output is written to the stream that the program wrote it to:
unchanged, but to a terminal without control characters. The status line is on stderr, only if that
is a terminal and only below a whole line of output, and is erased before anything else is written.
So only the output remains on the screen, whether both streams go to it or not. While a question is
open, no output is written; it waits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from time import monotonic
from typing import BinaryIO, TextIO

import anyio
import anyio.to_thread
from rich.cells import cell_len
from rich.text import Text

from bridge.callers.progress import RunProgress, told
from bridge.cli.terminal import Terminal
from bridge.model import Json
from bridge.tasks import background_task
from bridge.text import VisibleDecoder

MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Of output that its reader, such as a pager, has not read yet, or that waits for the answer to a
question. With more the program waits, and its time limit continues, as with coreutils'
`timeout`."""

DRAW_SECONDS = 0.2

MAX_NOTE = 120  # Characters of a server's progress message.


@dataclass(frozen=True, eq=False)
class _Question:
    """The position of a question in the output."""

    reached: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)


class LiveTerminal(Terminal):
    """A terminal that shows a run's output and status while `streaming` is open.

    Args:
        reader, writer: Where questions are answered and asked.
        screen: Draws the status line; None for no line.
        out, err: Destinations of the program's streams.
        drawn: Whether the terminal supports attributes, which mark the bridge's own lines.
    """

    def __init__(
        self,
        reader: TextIO,
        writer: TextIO,
        *,
        screen: Screen | None,
        out: BinaryIO,
        err: BinaryIO,
        drawn: bool = True,
    ) -> None:
        super().__init__(reader, writer, drawn=drawn)
        self.run_progress: RunProgress | None = None
        self._screen = screen
        self._streams = {"stdout": out, "stderr": err}
        self._decoders = {
            name: VisibleDecoder() for name, stream in self._streams.items() if stream.isatty()
        }
        self._queue: deque[tuple[str, bytes] | _Question] = deque()
        self._queued = 0
        self._writing = False
        self._changed = anyio.Event()

    @property
    def wants_progress(self) -> bool:
        """Whether there is a status line to show progress in."""
        return self._screen is not None

    def follow(self, run_progress: RunProgress) -> None:
        """Show this run's progress from now on."""
        self.run_progress = run_progress
        if self._screen is not None:
            self._screen.follow(run_progress)

    async def wrote(self, stream: str, data: bytes) -> None:
        """Queue output; wait while the queue is full."""
        while self._queued >= MAX_QUEUED_BYTES:
            await self._changed.wait()
        self._queue.append((stream, data))
        self._queued += len(data)
        self._notify()

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        """Show a server's progress message in the status line."""
        if self._screen is not None:
            self._screen.note = told(message, MAX_NOTE)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask, after all output until now has been written and without a status line.

        Raises:
            CannotAskError: There is no terminal, or it cannot show the form.
        """
        pause = _Question()
        if self._writing:
            # Queued, because a program that keeps writing would delay the question for ever.
            self._queue.append(pause)
            self._notify()
            await pause.reached.wait()
        try:
            with self._hidden():
                return await super().elicit(params)
        finally:
            pause.over.set()

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Write output and draw while this is open; all output is written before it closes.

        Raises:
            OSError: The output's reader has closed it.
        """
        async with AsyncExitStack() as stack:
            if self._screen is not None:
                stack.enter_context(self._screen.erased_for_logs())
                await stack.enter_async_context(background_task(self._screen.run))
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
        while self._queued:
            await self._changed.wait()
        for name, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True).encode("utf-8", "replace")
            if rest:
                await anyio.to_thread.run_sync(_write_flushed, self._streams[name], rest)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _write(self) -> None:
        while True:
            while not self._queue:
                await self._changed.wait()
            first = self._queue.popleft()
            if isinstance(first, _Question):
                first.reached.set()
                await first.over.wait()
                continue
            pieces = [first]
            while self._queue and not isinstance(next_piece := self._queue[0], _Question):
                pieces.append(next_piece)
                self._queue.popleft()
            # Abandoned on an interrupt: a reader that does not read must not block it.
            await anyio.to_thread.run_sync(self._write_now, pieces, abandon_on_cancel=True)
            self._queued -= sum(len(data) for _, data in pieces)
            self._notify()

    def _write_now(self, pieces: list[tuple[str, bytes]]) -> None:
        for name, data in pieces:
            decoder = self._decoders.get(name)
            if decoder is None:
                _write_flushed(self._streams[name], data)
                continue
            shown = decoder.decode(data).encode("utf-8", "backslashreplace")
            with self._hidden():
                _write_flushed(self._streams[name], shown)
                if self._screen is not None:
                    self._screen.wrote(shown)

    def _hidden(self) -> AbstractContextManager[None]:
        """Return a context in which no status line is drawn."""
        return nullcontext() if self._screen is None else self._screen.hidden()


def _write_flushed(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


class Screen:
    """The status line of a terminal, which several threads may use.

    Args:
        writer: The terminal.
        columns: Returns its current width.
        now: Returns a monotonic time in seconds.

    Attributes:
        note: A server's progress message.
    """

    def __init__(
        self, writer: TextIO, columns: Callable[[], int], now: Callable[[], float] = monotonic
    ) -> None:
        self._writer = writer
        self._columns = columns
        self._now = now
        self._run_progress: RunProgress | None = None
        self._started = 0.0
        self._drawn = ""
        self._hidden = 0
        self._at_line_start = True
        self._changing = threading.RLock()
        self.note = ""

    def follow(self, run_progress: RunProgress) -> None:
        """Draw this run's progress from now on."""
        self._run_progress = run_progress
        self._started = self._now()
        self.note = ""

    def wrote(self, data: bytes) -> None:
        """Note the output written to the terminal, to know whether its last line is whole."""
        if data:
            # A program's own bar ends with a carriage return, and must not be overwritten.
            self._at_line_start = data.endswith(b"\n")

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Draw nothing while this is open."""
        with self._changing:
            self._erase()
            self._hidden += 1
        try:
            yield
        finally:
            with self._changing:
                self._hidden -= 1

    @contextmanager
    def erased_for_logs(self) -> Iterator[None]:
        """Erase the line before each log record while this is open."""
        handlers = tuple(logging.getLogger().handlers)
        for handler in handlers:
            handler.addFilter(self._before_log)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self._before_log)

    def _before_log(self, _: logging.LogRecord) -> bool:
        with self._changing:
            self._erase()
        return True

    async def run(self) -> None:
        """Draw the line periodically, until cancelled."""
        try:
            while True:
                await anyio.sleep(DRAW_SECONDS)
                # A stopped terminal (Ctrl-S) blocks writes.
                await anyio.to_thread.run_sync(self.draw, abandon_on_cancel=True)
        finally:
            with self.hidden():
                self._run_progress = None

    def draw(self) -> None:
        """Draw the line, unless it is hidden, too early, or the output's last line is not whole."""
        with self._changing:
            run_progress = self._run_progress
            if run_progress is None or self._hidden or not self._at_line_start:
                return
            seconds = self._now() - self._started
            if seconds < 0.6:  # Short runs have no status line.
                return
            line = status_line(run_progress, seconds, self._columns() - 1, self.note)
            encoding = self._writer.encoding or "utf-8"
            line = line.encode(encoding, "replace").decode(encoding)
            if line == self._drawn:
                return
            self._erase()
            self._writer.write(line)
            self._writer.flush()
            self._drawn = line

    def _erase(self) -> None:
        if not self._drawn:
            return
        # A terminal that was made narrower has wrapped the line.
        above = (cell_len(self._drawn) - 1) // max(1, self._columns())
        up = f"\x1b[{above}A" if above > 0 else ""
        self._drawn = ""
        self._writer.write(up + "\r\x1b[J")
        self._writer.flush()


def live_terminal(reader: TextIO, writer: TextIO, *, drawn: bool) -> LiveTerminal:
    """Return a live terminal on this process's own streams.

    Args:
        drawn: Whether the terminal can draw; without a terminal no line is drawn.
    """
    screen = None
    if drawn and writer.isatty():
        descriptor = writer.fileno()
        screen = Screen(writer, lambda: _terminal_columns(descriptor))
    return LiveTerminal(
        reader, writer, screen=screen, out=sys.stdout.buffer, err=sys.stderr.buffer, drawn=drawn
    )


def _terminal_columns(descriptor: int) -> int:
    try:
        # Read each time, since windows are resized; some terminals do not know their size.
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 80


def status_line(run_progress: RunProgress, seconds: float, width: int, note: str = "") -> str:
    """Return the status line: a bar if the program reports its progress, the time, the calls. Pure.

    Args:
        width: Most columns of the line.
        note: A server's progress message.
    """
    if width < 20:
        return ""
    parts = [_time(seconds), run_progress.own_text(), run_progress.call_text(), note]
    text = " · ".join(part for part in parts if part)
    share = run_progress.share
    if share is not None:
        size = min(20, width // 3)
        full = round(share * size)
        text = f"[{'#' * full}{'-' * (size - full)}] {int(share * 100):3d}% {text}"
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"
