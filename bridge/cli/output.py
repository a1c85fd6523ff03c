"""What commands print: text to stdout and stderr, tables, colour only on a terminal."""

from __future__ import annotations

import sys
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


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns as wide as their widest cell; the last column is left open."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines) + "\n"
