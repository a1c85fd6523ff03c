"""A terminal with a user, and the command line."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from bridge.cli.main import main

Cli = Callable[..., tuple[int, str, str]]


@contextmanager
def desk(encoding: str = "utf-8") -> Iterator[tuple[int, TextIO, TextIO]]:
    """Yield the user's descriptor and the terminal's streams."""
    typist, line = pty.openpty()
    with (
        os.fdopen(line, encoding=encoding) as reader,
        os.fdopen(os.dup(line), "w", encoding=encoding) as writer,
    ):
        yield typist, reader, writer
    os.close(typist)


class TerminalOutput(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def read_until(typist: int, end: bytes) -> bytes:
    shown = b""
    while end not in shown:
        shown += os.read(typist, 65536)
    return shown


def command_line(capture: pytest.CaptureFixture[str], *after: str) -> Cli:
    """Return a function that runs a command; it returns the status, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        return main([*words, *after]), *capture.readouterr()

    return run
