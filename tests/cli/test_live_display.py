"""A run's output and status line at a terminal."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from rich.cells import cell_len

from bridge.callers.client import RunProgress
from bridge.cli import terminal as display
from bridge.cli.output import StatusLine, waiting
from bridge.cli.terminal import LiveTerminal, status_text
from bridge.model import Json
from tests.cli.desk import desk as terminal
from tests.cli.desk import read_until as read

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


ERASED = b"\x1b[2K"


def test_the_line_is_erased_before_anything_is_written() -> None:
    with terminal() as (typist, _, writer), StatusLine(writer) as line:
        line.text = "reading"
        read(typist, b"reading")
        with line.hide_status():
            writer.write("out\n")
            writer.flush()
            assert ERASED in read(typist, b"out\r\n").partition(b"out")[0]
            line.draw()
            writer.write("more\n")
            writer.flush()
            assert b"reading" not in read(typist, b"more\r\n")
        read(typist, b"reading")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_line_fits_with_wide_and_unknown_characters(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with terminal(encoding) as (typist, _, writer), StatusLine(writer) as line:
        line.text = "数据" * 50 + "e\u0301" * 30 + "\x1b[2J"
        read(typist, b"?" if encoding != "utf-8" else "数".encode())
        line.text = "end"
        shown = read(typist, b"end").decode(encoding)
        longest = max(cell_len(part) for part in re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n", shown))
        assert (longest <= 30, "\x1b[2J" in shown) == (True, False)


def test_an_inner_wait_returns_to_the_outer_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal() as (typist, _, writer):
        monkeypatch.setattr(sys, "stderr", writer)
        with waiting("reading files"):
            read(typist, b"reading files")
            with waiting("starting git") as say:
                read(typist, b"starting git")
                say("asking git")
                read(typist, b"asking git")
            read(typist, b"reading files")
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    with waiting("reading files") as say:
        say("more")
    assert out.getvalue() == ""


class Slow(io.RawIOBase):
    """A reader that blocks until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = b""

    def isatty(self) -> bool:
        return False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        assert self.go.wait(60)
        self.taken += data
        return len(data)


async def test_a_program_waits_for_a_slow_reader_only_if_the_queue_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(display, "MAX_QUEUED_BYTES", 9)
    slow, err = Slow(), io.BytesIO()
    person = LiveTerminal(io.StringIO(), io.StringIO(), shows=False, out=slow, err=err)  # type: ignore[arg-type]
    with anyio.fail_after(60):
        async with person.streaming():
            for piece in (b"a", b" queue "):
                await person.wrote("stdout", piece)
            with anyio.move_on_after(0.5) as waiting_for_it:
                await person.wrote("stdout", b"full")
            assert waiting_for_it.cancelled_caught
            slow.go.set()
    assert slow.taken == b"a queue "


async def test_an_interrupt_does_not_wait_for_a_slow_reader() -> None:
    slow, err = Slow(), io.BytesIO()
    person = LiveTerminal(io.StringIO(), io.StringIO(), shows=False, out=slow, err=err)  # type: ignore[arg-type]
    with anyio.fail_after(60), anyio.move_on_after(0.5):
        async with person.streaming():
            await person.wrote("stdout", b"never")
    assert slow.taken == b""
    slow.go.set()


async def test_only_the_output_remains_on_the_screen() -> None:
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
    """Yield the user's descriptor and a terminal, which also shows the log and, without `out`, the
    program's streams."""
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


async def test_a_program_s_output_has_no_control_characters_but_returns() -> None:
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


async def test_incomplete_characters_are_shown_and_a_pipe_gets_every_byte() -> None:
    with desk() as (typist, person):
        async with person.streaming():
            await person.wrote("stdout", b"end\n")
            await person.wrote("stderr", b"\xe2\x80")
        assert await read_until(typist, b"\\xe2\\x80") == b"end\r\n\\xe2\\x80"
    out = io.BytesIO()
    with desk(out) as (_, person):
        async with person.streaming():
            await person.wrote("stdout", b"\x1b[2J\r\xff")
    assert out.getvalue() == b"\x1b[2J\r\xff"


async def test_output_and_logs_wait_for_an_open_question() -> None:
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
    # The reset ends what the program tried to set, and only the bridge can write the mark.
    before, _, question = asked.decode().partition("\r\n")
    assert before.startswith("\\x1b[8mbefore")
    assert before.endswith("\x1b[0m\x1b(B\x0f\x1b[?25h")
    assert question.startswith("\x1b[7m Approval needed \x1b[0m\r\nmcp-code-bridge: may it?\r\n")
    assert after.startswith(b"Ann\r\n")
    assert b"WARNING a log line" in after
    assert b"\\x1b[2Jmcp-code-bridge: may it? " in after


async def test_a_program_that_keeps_writing_does_not_delay_a_question() -> None:
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
