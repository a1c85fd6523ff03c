"""A terminal with somebody at it, and the command line."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from bridge.cli.main import main

Cli = Callable[..., tuple[int, str, str]]


@contextmanager
def desk() -> Iterator[tuple[int, TextIO, TextIO]]:
    """Yield the descriptor of who types and looks, and the terminal's streams."""
    typist, line = pty.openpty()
    with (
        os.fdopen(line, encoding="utf-8") as reader,
        os.fdopen(os.dup(line), "w", encoding="utf-8") as writer,
    ):
        yield typist, reader, writer
    os.close(typist)


def command_line(capture: pytest.CaptureFixture[str], *after: str) -> Cli:
    """Return a function that runs a command; it returns its status and what it wrote.

    Args:
        after: Words behind those of every command.
    """

    def run(*words: str) -> tuple[int, str, str]:
        status = main([*words, *after])
        said = capture.readouterr()
        return status, said.out, said.err

    return run
