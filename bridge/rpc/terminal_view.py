"""A program's output as a terminal would show it. Pure.

Owns what returns, backspaces and escape sequences do to a text: progress bars overwrite their line,
and colours disappear. Lines that repeat are counted.
"""

from __future__ import annotations

import re

_PIECES = re.compile(
    r"\x1b\[(?P<up>\d{0,3})A|(?P<end>\x1b\[0?K)|(?P<line>\x1b\[2K)"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])"
    r"|\r++|[\n\b\x1b]|[^\r\n\b\x1b]++"
)
"""Matches one piece of a text: what moves the cursor or erases, what a terminal ignores, a text."""

_REPEATED = re.compile(r"(?m)^([^\S\n]*+[^\n]++\n)\1{9,}")
"""Matches a line that stands there ten times or more: fewer may be rows of a picture."""


def terminal_view(data: bytes) -> bytes:
    """Return what a terminal shows once it has received `data`."""
    # A character may be cut at either end.
    text = data.decode("utf-8", "surrogateescape")
    if not {"\r", "\x1b", "\b"}.isdisjoint(text):
        text = _draw(text)
    return _REPEATED.sub(_count, text).encode("utf-8", "surrogateescape")


def _count(match: re.Match[str]) -> str:
    line = match[1]
    return f"{line[:-1]} ({len(match[0]) // len(line):,} times)\n"


def _draw(text: str) -> str:
    rows: list[list[str]] = [[]]
    row = column = 0
    overwritten = set()
    for match in _PIECES.finditer(text):
        piece = match[0]
        if piece == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append([])
        elif piece[0] == "\r" or match["line"]:
            overwritten.add(row)
            column = 0
            if match["line"]:
                rows[row].clear()
        elif piece == "\b":
            column = max(0, column - 1)
        elif match["up"] is not None:
            # To the first column: no row is filled up with spaces, whose number has no bound.
            row, column = max(0, row - int(match["up"] or 1)), 0
        elif match["end"]:
            del rows[row][column:]
        elif piece[0] != "\x1b":
            rows[row][column : column + len(piece)] = piece
            column += len(piece)
    # A bar that was removed is overwritten with spaces.
    lines = ("".join(line) for line in rows)
    return "\n".join(s.rstrip(" ") if n in overwritten else s for n, s in enumerate(lines))
