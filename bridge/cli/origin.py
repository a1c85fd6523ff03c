"""The process in which the user typed a command: its streams, environment and working directory.

It is this process, unless this is a background bridge that executes the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import logging

    from bridge.cli.output import StatusLine
    from bridge.runs.engine import SharedParts


@dataclass(eq=False)
class Origin:
    """A command's process, by default this one; empty values mean those of this process."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: str = ""
    streams: Sequence[TextIO] = ()  # stdin, stdout and stderr.
    handlers: Sequence[logging.Handler] = ()  # They show the command's log.
    shared: SharedParts | None = None  # The parts of the background bridge that executes it.
    status_line: StatusLine | None = None


ORIGIN: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039


def _stream(number: int) -> TextIO:
    return (ORIGIN.get().streams or (sys.stdin, sys.stdout, sys.stderr))[number]


stdin, stdout, stderr = (partial(_stream, number) for number in range(3))


def path_of(word: str | Path) -> Path:
    """Return a path that a command line names."""
    return Path(ORIGIN.get().cwd, word)


def columns_of(stream: TextIO) -> int:
    """Return the width of a stream's terminal: 0 if it is unknown, 80 without a terminal."""
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns
    return 80
