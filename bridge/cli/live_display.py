"""A run at a terminal, while it goes on: its output as it comes, and below it a line on how it is.

Owns the two streams of the terminal. The program's output is passed on to the stream it was written
to: exactly, but to a terminal with nothing in it that a terminal obeys. The line stands on stderr,
only if that is a terminal, only below a whole line of output, and is gone before anything else is
written: whether both streams go to one screen or not, what is left on it in the end is the output
alone. While a question stands nothing is written; what comes meanwhile waits.
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
question. More keeps the program waiting, whose time goes on, as with coreutils' `timeout`."""

DRAW_SECONDS = 0.2
FIRST_DRAW_SECONDS = 0.6
"""Between drawings, and until the first: of a short run there is nothing to see."""

LEAST_WIDTH = 20
"""Columns below which no line is drawn."""

MAX_NOTE = 120
"""Characters of what a server says of its call."""

_BAR = 20

_ERASE = "\r\x1b[J"
"""Back to the first column, and everything from there on blank."""


@dataclass(frozen=True, eq=False)
class _Pause:
    """Where in the output a question stands."""

    reached: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)


class LiveTerminal(Terminal):
    """Someone who looks on. Shows while `showing` is open.

    Args:
        reader, writer: Where questions are answered and asked.
        screen: Where the line is drawn; None for nowhere.
        out, err: Where the program's streams go.
        drawn: Whether the terminal knows attributes, which mark what is the bridge's.
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
        self._queue: deque[tuple[str, bytes] | _Pause] = deque()
        self._queued = 0
        self._writing = False
        self._changed = anyio.Event()

    @property
    def wants_progress(self) -> bool:
        """Whether there is a line to show it in."""
        return self._screen is not None

    def follow(self, run_progress: RunProgress) -> None:
        """Show how a run gets on."""
        self.run_progress = run_progress
        if self._screen is not None:
            self._screen.follow(run_progress)

    async def wrote(self, stream: str, data: bytes) -> None:
        """Pass output on as fast as its reader reads."""
        while self._queued >= MAX_QUEUED_BYTES:
            await self._changed.wait()
        self._queue.append((stream, data))
        self._queued += len(data)
        self._tell()

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        """Show what a server says of its call."""
        if self._screen is not None:
            self._screen.note = told(message, MAX_NOTE)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask, below all the output until here and without a line that is drawn over it.

        Raises:
            CannotAskError: There is no terminal, or the form is not one for lines.
        """
        pause = _Pause()
        if self._writing:
            # Behind it, for a program that goes on writing would keep the question away for ever.
            self._queue.append(pause)
            self._tell()
            await pause.reached.wait()
        try:
            with self._hidden():
                return await super().elicit(params)
        finally:
            pause.over.set()

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """Pass output on and draw, as long as this is open; all output is written at its end.

        Raises:
            OSError: Its reader has gone.
        """
        async with AsyncExitStack() as stack:
            if self._screen is not None:
                stack.enter_context(self._screen.among_logs())
                await stack.enter_async_context(background_task(self._screen.run))
            await stack.enter_async_context(background_task(self._write))
            self._writing = True
            try:
                yield
            except Exception:
                # What the program wrote until then is worth as much as before.
                await self._finish()
                raise
            finally:
                self._writing = False
            await self._finish()

    async def _finish(self) -> None:
        """Write all output, with what the decoder held back as incomplete."""
        while self._queued:
            await self._changed.wait()
        for name, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True).encode("utf-8", "replace")
            if rest:
                await anyio.to_thread.run_sync(_pass_on, self._streams[name], rest)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _write(self) -> None:
        while True:
            while not self._queue:
                await self._changed.wait()
            first = self._queue.popleft()
            if isinstance(first, _Pause):
                first.reached.set()
                await first.over.wait()
                continue
            pieces = [first]
            while self._queue and not isinstance(following := self._queue[0], _Pause):
                pieces.append(following)
                self._queue.popleft()
            # Abandoned on an interrupt: a reader that does not read must not block the end.
            await anyio.to_thread.run_sync(self._write_now, pieces, abandon_on_cancel=True)
            self._queued -= sum(len(data) for _, data in pieces)
            self._tell()

    def _write_now(self, pieces: list[tuple[str, bytes]]) -> None:
        for name, data in pieces:
            decoder = self._decoders.get(name)
            if decoder is None:
                _pass_on(self._streams[name], data)
                continue
            shown = decoder.decode(data).encode("utf-8", "backslashreplace")
            with self._hidden():
                _pass_on(self._streams[name], shown)
                if self._screen is not None:
                    self._screen.wrote(shown)

    def _hidden(self) -> AbstractContextManager[None]:
        """Draw no line while this is open."""
        return nullcontext() if self._screen is None else self._screen.hidden()


def _pass_on(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


class Screen:
    """The last line of a terminal, used by several threads.

    Args:
        writer: The terminal.
        columns: Returns how wide it is at this moment.
        now: Seconds, from whenever.

    Attributes:
        note: What a server says of its call.
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
        """Draw how this run gets on from now on."""
        self._run_progress = run_progress
        self._started = self._now()
        self.note = ""

    def wrote(self, data: bytes) -> None:
        """Record what was written to the terminal."""
        if data:
            # A bar that the program draws itself ends with a return, and is not to be drawn over.
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
    def among_logs(self) -> Iterator[None]:
        """Erase the line before anything is logged."""
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
        """Draw again and again, until cancelled."""
        try:
            while True:
                await anyio.sleep(DRAW_SECONDS)
                # A terminal that is stopped (Ctrl-S) takes nothing.
                await anyio.to_thread.run_sync(self.draw, abandon_on_cancel=True)
        finally:
            with self.hidden():
                self._run_progress = None

    def draw(self) -> None:
        """Draw the line, if this is the time and place for one."""
        with self._changing:
            run_progress = self._run_progress
            if run_progress is None or self._hidden or not self._at_line_start:
                return
            seconds = self._now() - self._started
            if seconds < FIRST_DRAW_SECONDS:
                return
            line = line_of(run_progress, seconds, self._columns() - 1, self.note)
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
        # Made narrower, a terminal has broken the line into several.
        above = (cell_len(self._drawn) - 1) // max(1, self._columns())
        up = f"\x1b[{above}A" if above > 0 else ""
        self._drawn = ""
        self._writer.write(up + _ERASE)
        self._writer.flush()


def live_terminal(reader: TextIO, writer: TextIO, *, drawn: bool) -> LiveTerminal:
    """Return one on this process's own streams.

    Args:
        drawn: Whether the terminal can draw at all; one that is no terminal never does.
    """
    screen = None
    if drawn and writer.isatty():
        descriptor = writer.fileno()
        screen = Screen(writer, lambda: _terminal_columns(descriptor))
    return LiveTerminal(
        reader,
        writer,
        screen=screen,
        out=sys.stdout.buffer,
        err=sys.stderr.buffer,
        drawn=drawn,
    )


def _terminal_columns(descriptor: int) -> int:
    try:
        # Asked anew each time, as windows change; some terminals know nothing of their size.
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 80


def line_of(run_progress: RunProgress, seconds: float, width: int, note: str = "") -> str:
    """Return the line: a bar if the program says how far it is, the time, and what goes on. Pure.

    Args:
        width: Columns that it may take.
        note: What a server says of its call.
    """
    if width < LEAST_WIDTH:
        return ""
    parts = [_time(seconds), run_progress.own_text(), run_progress.call_text(), note]
    text = " · ".join(part for part in parts if part)
    share = run_progress.share
    if share is not None:
        size = min(_BAR, width // 3)
        full = round(share * size)
        text = f"[{'#' * full}{'-' * (size - full)}] {int(share * 100):3d}% {text}"
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"
