"""What commands print: text to stdout and stderr, tables, colour only on a terminal."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO


def write_out(text: str) -> None:
    """Write to stdout exactly."""
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write to stderr exactly."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    # Lone surrogates and narrow terminals must not turn output into a traceback.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def visible(text: str, keep: str = "\n\t") -> str:
    """Return text from elsewhere with its control and format characters written out.

    A terminal obeys them: they move the cursor, change the title, hide or reverse what is shown.
    Never for a program's own output, nor for JSON, which must stay as they are.

    Args:
        keep: The characters that are left alone all the same.
    """
    if text.isprintable():
        return text
    return "".join(
        _written_out(character)
        if unicodedata.category(character) in ("Cc", "Cf") and character not in keep
        else character
        for character in text
    )


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class VisibleFormatter(logging.Formatter):
    """Formats log records, in which names from configuration files stand, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with nothing in it that a terminal obeys."""
        return visible(super().format(record))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns as wide as their widest cell; the last column is left open.

    Cells come from elsewhere: not even a newline may pass, or a name could forge a row.
    """
    rows = [[visible(cell, keep="") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines) + "\n"
