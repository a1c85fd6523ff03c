"""A run at a terminal while it continues: the line below its output, and the output itself."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import anyio
import pytest
from rich.cells import cell_len

from bridge.callers.progress import RunProgress
from bridge.cli.status import StatusLine, waiting
from bridge.cli.terminal import LiveTerminal, status_text
from bridge.model import Json
from tests.cli.desk import desk as terminal

pytestmark = pytest.mark.guarantee("terminal-escapes", "terminal-questions")


@pytest.fixture(autouse=True)
def terminal_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def run_progress(done: float = 3, total: float = 10, message: str = "loading") -> RunProgress:
    made = RunProgress()
    made.advance(done, total, message)
    return made


def test_the_line_has_a_bar_the_time_and_what_the_run_waits_for() -> None:
    run = run_progress()
    with run.calling("git.log"):
        assert status_text(run, 12.9) == (
            "━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌  30% 12 s · 3 of 10, loading · calling git.log"
        )
    assert status_text(RunProgress(), 75) == "1:15"
    assert status_text(run_progress(10, 10, ""), 5).startswith("━━━━━━━━━━━━━━━━━━━━ 100% 5 s")
    assert status_text(RunProgress(), 3, note="desk.copy: 3 files (3/9)") == (
        "3 s · desk.copy: 3 files (3/9)"
    )


@contextmanager
def glass(encoding: str = "utf-8") -> Iterator[tuple[Any, TextIO]]:
    """Give a terminal's stream, and a function that returns its new bytes once they have an end."""
    seen_by, line = pty.openpty()
    with os.fdopen(line, "w", encoding=encoding) as writer:

        def read(end: bytes) -> bytes:
            shown = b""
            while end not in shown:
                shown += os.read(seen_by, 65536)
            return shown

        yield read, writer
    os.close(seen_by)


ERASED = b"\x1b[2K"


def test_the_line_is_erased_before_anything_is_written() -> None:
    with glass() as (read, writer), StatusLine(writer) as line:
        line.text = "reading"
        assert b"reading" in read(b"reading")
        with line.hide_status():
            writer.write("out\n")
            writer.flush()
            assert ERASED in read(b"out\r\n").partition(b"out")[0]
            line.draw()
            writer.write("more\n")
            writer.flush()
            assert b"reading" not in read(b"more\r\n")
        assert b"reading" in read(b"reading")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_line_fits_whatever_is_in_it(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide characters take two columns, accents none; no terminal's letters break it."""
    monkeypatch.setenv("COLUMNS", "30")
    with glass(encoding) as (read, writer), StatusLine(writer) as line:
        line.text = "数据" * 50 + "e\u0301" * 30 + "\x1b[2J"
        read(b"?" if encoding != "utf-8" else "数".encode())
        line.text = "end"
        shown = read(b"end").decode(encoding)
        longest = max(cell_len(part) for part in re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n", shown))
        assert longest <= 30
        assert "\x1b[2J" not in shown


def test_an_inner_wait_returns_to_the_outer_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with glass() as (read, writer):
        monkeypatch.setattr(sys, "stderr", writer)
        with waiting("reading files"):
            read(b"reading files")
            with waiting("starting git") as say:
                read(b"starting git")
                say("asking git")
                read(b"asking git")
            read(b"reading files")


def test_without_a_terminal_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    with waiting("reading files") as say:
        say("more")
    assert out.getvalue() == ""


class Slow(io.RawIOBase):
    """A reader that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = b""

    def isatty(self) -> bool:
        return False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        assert self.go.wait(60)
        self.taken += data
        return len(data)


async def test_a_slow_reader_keeps_the_program_waiting_and_an_interrupt_does_not_wait() -> None:
    slow, err = Slow(), io.BytesIO()
    person = LiveTerminal(io.StringIO(), io.StringIO(), shows=False, out=slow, err=err)  # type: ignore[arg-type]
    with anyio.fail_after(60):
        async with person.streaming():
            with anyio.move_on_after(0.5) as waiting_for_it:
                await person.wrote("stdout", b"first ")
            assert waiting_for_it.cancelled_caught
            slow.go.set()
            await person.wrote("stdout", b"end")
    assert sorted(slow.taken) == sorted(b"first end")


async def test_on_one_screen_only_the_output_is_left() -> None:
    """For real, on a terminal: both streams, a bar in between, bytes that are no text."""
    with (
        terminal() as (typist, reader, writer),
        os.fdopen(os.dup(reader.fileno()), "wb", buffering=0) as out,
    ):
        person = LiveTerminal(reader, writer, shows=True, out=out, err=out)
        shown = b""
        with anyio.fail_after(60):
            async with person.streaming():
                person.follow(run_progress())
                await person.wrote("stdout", b"first\n")
                while b"loading" not in shown:
                    await anyio.wait_readable(typist)
                    shown += os.read(typist, 65536)
                await person.wrote("stderr", b"\xff second\n")
        shown += await read_until(typist, b" second\r\n")
    assert b"first\r\n" in shown
    before, after = shown.split(b"\\xff second")
    assert ERASED in before.rpartition(b"loading")[2]
    assert after == b"\r\n"


FORM: dict[str, Json] = {
    "message": "mcp-code-bridge: may it?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


@contextmanager
def desk(out: io.BufferedIOBase | None = None) -> Iterator[tuple[int, LiveTerminal]]:
    """Give the descriptor of who types and looks, and a terminal, which has the log, too.

    Args:
        out: Where the program's streams go; None for there.
    """
    with (
        terminal() as (typist, reader, writer),
        os.fdopen(os.dup(reader.fileno()), "wb", buffering=0) as screen,
    ):
        stream = out or screen
        handler = logging.StreamHandler(writer)
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
        yield typist, LiveTerminal(reader, writer, shows=False, out=stream, err=stream)  # type: ignore[arg-type]
        logging.getLogger().removeHandler(handler)


async def read_until(typist: int, end: bytes) -> bytes:
    shown = b""
    with anyio.fail_after(30):
        while not shown.endswith(end):
            await anyio.wait_readable(typist)
            shown += os.read(typist, 65536)
    return shown


async def test_a_terminal_is_given_nothing_of_a_programs_that_it_obeys() -> None:
    """In pieces of any size: escapes, C1, what turns or hides text, what is no text.

    A return is left to it, which reaches its own line only; bars are drawn so.
    """
    hostile = "a\x1b[2J\x9b31m\x00\x7f\r\nb\rc\t\u202e\u200bd\n".encode() + b"\xff\x80 e\n"
    for size in (1, 2, 3, 1000):
        with desk() as (typist, person):
            async with person.streaming():
                for at in range(0, len(hostile), size):
                    await person.wrote("stdout", hostile[at : at + size])
            shown = await read_until(typist, b" e\r\n")
        assert shown.decode() == (
            "a\\x1b[2J\\x9b31m\\x00\\x7f\r\r\nb\rc\t\\u202e\\u200bd\r\n\\xff\\x80 e\r\n"
        )


async def test_what_is_incomplete_at_the_end_is_shown_all_the_same() -> None:
    with desk() as (typist, person):
        async with person.streaming():
            await person.wrote("stdout", b"end\n")
            await person.wrote("stderr", b"\xe2\x80")
        assert await read_until(typist, b"\\xe2\\x80") == b"end\r\n\\xe2\\x80"


async def test_what_is_no_terminal_gets_every_byte() -> None:
    out = io.BytesIO()
    with desk(out) as (_, person):
        async with person.streaming():
            await person.wrote("stdout", b"\x1b[2J\r\xff")
    assert out.getvalue() == b"\x1b[2J\r\xff"


async def test_nothing_is_written_while_a_question_stands() -> None:
    """Neither output nor logs: the answer is typed behind the question, and then all comes."""
    log = logging.getLogger("tests.cli.live")
    answers: list[object] = []
    with desk() as (typist, person):
        async with person.streaming(), anyio.create_task_group() as tasks:

            async def ask() -> None:
                answers.append(await person.elicit(FORM))

            await person.wrote("stdout", b"\x1b[8mbefore")
            tasks.start_soon(ask)
            asked = await read_until(typist, b"name (may be empty): ")
            for piece in (b"\x1b[2Jmcp-code-bridge: may it? ", b"Press y: \n"):
                tasks.start_soon(person.wrote, "stdout", piece)
            log.warning("a log line")
            await anyio.wait_all_tasks_blocked()
            os.write(typist, b"Ann\n")
            after = await read_until(typist, b"Press y: \r\n")
    assert answers == [{"action": "accept", "content": {"name": "Ann"}}]
    # What a program wrote is over, whatever it tried to set, and the mark is the bridge's own.
    before, _, question = asked.decode().partition("\r\n")
    assert before.startswith("\\x1b[8mbefore")
    assert before.endswith("\x1b[0m\x1b(B\x0f\x1b[?25h")
    assert question.startswith("\x1b[7m Approval needed \x1b[0m\r\nmcp-code-bridge: may it?\r\n")
    assert after.startswith(b"Ann\r\n")
    assert b"WARNING a log line" in after
    assert b"\\x1b[2Jmcp-code-bridge: may it? " in after


async def test_a_program_that_never_stops_writing_keeps_no_question_away() -> None:
    """While the question stands the program waits."""
    out = io.BytesIO()
    with desk(out) as (typist, person):
        async with person.streaming(), anyio.create_task_group() as tasks:

            async def flood() -> None:
                while True:
                    await person.wrote("stdout", b"x" * (1 << 16))

            async def answer() -> None:
                await read_until(typist, b"name (may be empty): ")
                stood = len(out.getvalue())
                await anyio.wait_all_tasks_blocked()
                assert len(out.getvalue()) == stood
                os.write(typist, b"Ann\n")

            tasks.start_soon(flood)
            tasks.start_soon(answer)
            assert (await person.elicit(FORM))["action"] == "accept"
            tasks.cancel_scope.cancel()
