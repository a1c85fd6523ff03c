"""What commands print: text to stdout and stderr, JSON, tables.

The only place that writes to the two. To a terminal goes nothing that it obeys, wherever a text
comes from and whether or not its command thought of that; what is no terminal gets every byte.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from bridge import text as texts
from bridge.model import Json

visible = texts.visible

logger = logging.getLogger(__name__)

MAX_HELD_LOGS = 200  # Log lines that wait for the answer to a question; further ones are counted.
MAX_LINES = 50  # Log lines from one place in the code, in each window.
WINDOW_SECONDS = 10.0  # What one period left out is reported with the first line of the next.
MAX_MESSAGE = 4000  # Characters of one log message, before what is added to each line.

_USUAL_WIDTH = 80
_LEAST_WIDTH = 40
NEVER_FULL = 1_000_000
"""Columns of a pipe: what reads it wants each row on a line, and nothing cut."""


def write_out(text: str) -> None:
    """Write to stdout: exactly, or made visible if it is a terminal."""
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write to stderr: exactly, or made visible if it is a terminal."""
    _write(sys.stderr, text)


def write_err_line(text: str) -> None:
    """Write a line to stderr, and nothing that could pass for another."""
    write_err(visible(text, keep="") + "\n")


def write_prose(text: str, stream: TextIO | None = None) -> None:
    """Write lines of the bridge's own, to stdout: broken between words where a terminal ends.

    What goes on below a line begins where that does.
    """
    stream = sys.stdout if stream is None else stream
    if stream.isatty():
        lines = visible(text).split("\n")
        text = "\n".join(broken for line in lines for broken in _broken(line, stream))
    _write(stream, text)


def _broken(line: str, stream: TextIO) -> Sequence[str]:
    # Imported here: `serve` does without it.
    from rich.console import Console
    from rich.text import Text

    try:
        width = max(os.get_terminal_size(stream.fileno()).columns, _LEAST_WIDTH)
    except OSError:
        width = _USUAL_WIDTH
    if len(line) * 2 <= width:
        return [line]
    said = line.lstrip(" ")
    indent = " " * min(len(line) - len(said), _LEAST_WIDTH // 2)
    console = Console(file=stream, width=width)
    broken = Text(said).wrap(console, width - len(indent))
    return [f"{indent}{part.plain.rstrip()}" for part in broken]


def write_diff(text: str) -> None:
    """Write a unified diff to stdout, in colour on a terminal."""
    if not is_drawn(sys.stdout):
        write_out(text)
        return
    codes = {"+": "32", "-": "31"}
    for line in visible(text).splitlines(keepends=True):
        code = codes.get(line[0], "1" if line.startswith(("+++", "---")) else "0")
        sys.stdout.write(_encodable(sys.stdout, f"\x1b[{code}m{line.rstrip()}\x1b[0m\n"))
    sys.stdout.flush()


def write_json(value: Json, *, indent: int | None = None) -> None:
    """Write a value to stdout as JSON, in which nothing is raw that a terminal obeys."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    write_out(f"{texts.visible_json(text)}\n")


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows in columns to stdout: as wide as its terminal, or one on each line of a pipe."""
    sys.stdout.write(_encodable(sys.stdout, table(headings, rows)))
    sys.stdout.flush()


def _write(stream: TextIO, text: str) -> None:
    if stream.isatty():
        # A return begins a new line, so that nothing is written over what stands there.
        text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    stream.write(_encodable(stream, text))
    stream.flush()


def _encodable(stream: TextIO, text: str) -> str:
    """Return what a stream can take: no terminal's letters turn output into a traceback."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class VisibleFormatter(logging.Formatter):
    """Formats log records, in which names from configuration files stand, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with nothing in it that a terminal obeys."""
        record.level = record.levelname.lower()
        return visible(super().format(record))


class _HeldLogs(logging.Filter):
    """Keeps back what a handler is to log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.more = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self.records) < MAX_HELD_LOGS:
            self.records.append(record)
        else:
            self.more += 1
        return False


@contextmanager
def hold_logs() -> Iterator[None]:
    """Hold log lines back while this is open, and write the first `MAX_HELD_LOGS` afterwards."""
    holding = {handler: _HeldLogs() for handler in logging.getLogger().handlers}
    for handler, held in holding.items():
        handler.addFilter(held)
    try:
        yield
    finally:
        for handler, held in holding.items():
            handler.removeFilter(held)
            for record in held.records:
                handler.handle(record)
        more = sum(held.more for held in holding.values())
        if more:
            logger.warning("%s left out while a question stood", texts.counted(more, "log line"))


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0


class RepeatedLines(logging.Filter):
    """Leaves out log lines that come too often from one place, and says how many they were.

    A server, a program or a client can have a line written as often as it likes; no flood of them
    fills a disk or hides the others.

    Args:
        now: Seconds from a moment that never changes.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # One for each place in the code that writes lines, of which there are some hundreds.
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; it may be changed."""
        now = self._now()
        window = self._windows.setdefault((record.pathname, record.lineno), _Window(now))
        left_out = 0
        if now - window.began >= WINDOW_SECONDS:
            left_out = max(0, window.lines - MAX_LINES)
            window.began, window.lines = now, 0
        window.lines += 1
        if window.lines > MAX_LINES:
            return False
        text = message = record.getMessage()
        if len(text) > MAX_MESSAGE:
            text = f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"
        if window.lines == MAX_LINES:
            text = f"{text} [more of these in the next {WINDOW_SECONDS:g} s are only counted]"
        if left_out:
            text = f"{text} [repeated {left_out:,} times before]"
        if text != message:
            record.msg, record.args = text, None
        return True


def is_drawn(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which bars and colours may be drawn."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return stream.isatty() and not plain


def terminal_width() -> int | None:
    """Return how wide stdout's terminal is; None if stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns, _LEAST_WIDTH)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns, wrapped within them where a terminal is too narrow.

    Cells come from elsewhere: not even a newline may pass, or a name could forge a row, and nothing
    in them is markup.
    """
    # Imported here: `serve` does without it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = terminal_width()
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        drawn.add_column(Text(heading, overflow="fold"), overflow="fold", min_width=len(heading))
    for row in rows:
        drawn.add_row(*(Text(visible(cell, keep=""), overflow="fold") for cell in row))
    console = Console(file=sys.stdout, width=width or NEVER_FULL)
    with console.capture() as captured:
        console.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
