"""What commands print: text to stdout and stderr, JSON, tables.

The only place that writes to the two. To a terminal goes nothing that it obeys, wherever a text
comes from and whether or not its command thought of that; what is no terminal gets every byte.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from bridge import text as texts
from bridge.model import Json

visible = texts.visible

logger = logging.getLogger(__name__)

MAX_HELD_LOGS = 200
"""Log lines that wait for the answer to a question; further ones are counted."""

_GAP = "  "
_USUAL_WIDTH = 80
_LEAST_WIDTH = 40
_LEAST_COLUMN = 8
_BELOW = "    "


def write_out(text: str) -> None:
    """Write to stdout: exactly, or made visible if it is a terminal."""
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write to stderr, likewise."""
    _write(sys.stderr, text)


def write_json(value: Json, *, indent: int | None = None) -> None:
    """Write a value to stdout as JSON, in which nothing is raw that a terminal obeys."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    write_out(f"{texts.visible_json(text)}\n")


def redraw(text: str) -> None:
    """Replace the last line of stderr's terminal; the text is made visible."""
    sys.stderr.write(f"\r\x1b[K{visible(text, keep='')}")
    sys.stderr.flush()


def _write(stream: TextIO, text: str) -> None:
    if stream.isatty():
        # A return begins a new line, so that nothing is written over what stands there.
        text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    # Lone surrogates and narrow terminals must not turn output into a traceback.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


class VisibleFormatter(logging.Formatter):
    """Formats log records, in which names from configuration files stand, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with nothing in it that a terminal obeys."""
        record.level = record.levelname.lower()
        return visible(super().format(record))


class _Holding(logging.Filter):
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
def logs_held() -> Iterator[None]:
    """Have nothing logged meanwhile, and the first `MAX_HELD_LOGS` of it afterwards."""
    holding = {handler: _Holding() for handler in logging.getLogger().handlers}
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


def terminal_width() -> int | None:
    """Return how wide stdout's terminal is; None if stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns, _LEAST_WIDTH)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    below: bool = False,
) -> str:
    """Return rows in columns as wide as their widest cell; the last column is left open.

    Cells come from elsewhere: not even a newline may pass, or a name could forge a row.

    Args:
        width: Of the terminal; the widest columns are cut until a row fits into a line. Without
            one nothing is cut, for what reads it is a program.
        below: Put the last column on lines of its own, below the others, rather than cut any.
    """
    rows = [[visible(cell, keep="") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    if below and width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        upper = table(headings[:-1], [row[:-1] for row in rows], width=width).splitlines()
        lower = [f"{_BELOW}{_end(row[-1], width - len(_BELOW))}" for row in [headings, *rows]]
        return "".join(f"{line}\n{more}\n" for line, more in zip(upper, lower, strict=True))
    if width is not None:
        widths = _narrowed(widths, width - len(_GAP) * (len(widths) - 1))
        rows = [[_cut(cell, size) for cell, size in zip(row, widths, strict=True)] for row in rows]
    lines = []
    for row in [headings, *rows]:
        cells = [cell.ljust(size) for cell, size in zip(row[:-1], widths, strict=False)]
        lines.append(_GAP.join([*cells, row[-1]]).rstrip())
    return "\n".join(lines) + "\n"


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths with the widest lowered, all to the same, until they fit into `room`."""
    least, most = _LEAST_COLUMN, max(widths)
    while sum(min(size, most) for size in widths) > room and most > least:
        most -= 1
    return [min(size, most) for size in widths]


def _end(cell: str, size: int) -> str:
    """Return a path cut to `size` where paths are alike."""
    return cell if len(cell) <= size else f"…{cell[len(cell) - size + 1 :]}"


def _cut(cell: str, size: int) -> str:
    return cell if len(cell) <= size else f"{cell[: size - 1]}…"
