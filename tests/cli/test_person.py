"""A user at a terminal answers only the question that is shown."""

from __future__ import annotations

import io
import os
import pty
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import anyio
import pytest

from bridge.cli import terminal as module
from bridge.cli.terminal import Person
from tests.cli.desk import desk
from tests.waiting import PATIENCE_SECONDS, typing_answers


@contextmanager
def person_at_desk() -> Iterator[tuple[int, TextIO, Person]]:
    with desk() as (typist, reader, writer), anyio.fail_after(PATIENCE_SECONDS):
        yield typist, reader, Person(reader, writer)


async def _ask_all(typist: int, person: Person, *answers: str) -> list[str | None]:
    """Ask a question for each answer, which is typed when the question is shown."""
    async with typing_answers(typist, *answers):
        return [await person.ask(f"Question {number}: ") for number in range(len(answers))]


@pytest.mark.guarantee("terminal-questions")
async def test_input_from_before_a_question_does_not_answer_it() -> None:
    with person_at_desk() as (typist, reader, person):
        tty.setraw(reader.fileno())
        os.write(typist, b"first\nread ahead\n")
        await anyio.wait_readable(reader.fileno())
        assert reader.readline() == "first\n"
        with person_at_desk() as (other, _, another):
            os.write(other, b"apply\nyes\nalw")
            assert await _ask_all(other, another, "no\n") == ["no"]
        assert await _ask_all(typist, person, "no\n") == ["no"]


@pytest.mark.parametrize(
    ("answers", "agreed"),
    [(("yes\n",), True), (("sure\n", "Y\n"), True), (("\n",), False), (("x\n", "no\n"), False)],
)
async def test_neither_yes_nor_no_is_asked_again(answers: tuple[str, ...], agreed: bool) -> None:
    with person_at_desk() as (typist, _, person):
        async with typing_answers(typist, *answers) as shown:
            assert await person.confirm("May it?") is agreed
    assert ("Please answer yes or no." in shown[0]) is (len(answers) > 1)


async def test_one_paste_answers_one_question() -> None:
    with person_at_desk() as (typist, reader, person):
        pasted = "yes\n" * 100
        assert await _ask_all(typist, person, pasted, "no\n", pasted) == ["yes", "no", "yes"]
        os.set_blocking(reader.fileno(), False)
        with pytest.raises(BlockingIOError):
            os.read(reader.fileno(), 1)


async def test_no_answer_is_none() -> None:
    with person_at_desk() as (typist, _, person):
        assert await _ask_all(typist, person, "\x04", "yes\x04\x04", "\n") == [None, None, ""]
    typist, line = pty.openpty()
    with os.fdopen(line, encoding="utf-8") as reader:
        os.close(typist)
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await Person(reader, io.StringIO()).ask("Anybody? ") is None


async def test_input_without_a_pause_gets_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNQUIET_SECONDS", 0.2)
    monkeypatch.setattr(module, "QUIET_SECONDS", 30.0)
    with person_at_desk() as (typist, reader, person):
        over = anyio.Event()
        tty.setraw(reader.fileno())

        async def type_on() -> None:
            while not over.is_set():
                # A full terminal must not block this test.
                with suppress(BlockingIOError):
                    os.write(typist, b"yes\n")
                await anyio.lowlevel.checkpoint()

        os.set_blocking(typist, False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(type_on)
            assert await person.ask("Delete everything? ") is None
            over.set()
        with pytest.raises(BlockingIOError):
            os.read(typist, 1)


async def test_only_two_terminals_are_attended() -> None:
    with person_at_desk() as (_, reader, person):
        assert person.attended
        assert not Person(reader, io.StringIO()).attended
        assert not Person(io.StringIO(), reader).attended
