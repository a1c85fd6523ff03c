"""The process that a command was typed in: its streams, environment and working directory.

It is this process, unless a background bridge executes the command for another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from bridge.cli.output import StatusLine
    from bridge.runs.engine import SharedParts


@dataclass(eq=False)
class Origin:
    """Where a command comes from.

    Attributes:
        streams: Its stdin, stdout and stderr; by default this process's.
        cwd: Its working directory; empty for this process's.
        shared: The parts of the background bridge that executes the command.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    streams: tuple[TextIO, TextIO, TextIO] | None = None
    cwd: str = ""
    shared: SharedParts | None = None
    status_line: StatusLine | None = None


ORIGIN: ContextVar[Origin] = ContextVar("origin", default=Origin())


def stdin() -> TextIO:
    streams = ORIGIN.get().streams
    return sys.stdin if streams is None else streams[0]


def stdout() -> TextIO:
    streams = ORIGIN.get().streams
    return sys.stdout if streams is None else streams[1]


def stderr() -> TextIO:
    streams = ORIGIN.get().streams
    return sys.stderr if streams is None else streams[2]


def path_of(word: str | Path) -> Path:
    """Return a path that a command line names."""
    return Path(ORIGIN.get().cwd, word)


def columns_of(stream: TextIO) -> int:
    """Return the width of a stream's terminal, as `shutil.get_terminal_size` finds that of stdout."""
    for find in (
        lambda: int(ORIGIN.get().environ.get("COLUMNS", "")),
        lambda: os.get_terminal_size(stream.fileno()).columns,
    ):
        try:
            if (columns := find()) > 0:
                return columns
        except (OSError, ValueError):
            pass
    return 80
