"""The person at a terminal: what is said to them, and what they answer.

The only place where an answer is read. Owns that a line answers the question that stood there when
it was typed: text typed before, or pasted along with the answer to another question, counts
for nothing. What a question means is its asker's.
"""

from __future__ import annotations

import os
import termios
from typing import TextIO

import anyio

from bridge.cli.output import tell, visible
from bridge.errors import UsageError

MAX_TRIES = 5
"""For one question, before it counts as not answered."""

QUIET_SECONDS = 0.05
"""Without another line, before a question: a paste is handed over in pieces, some time apart."""

MAX_UNQUIET_SECONDS = 5.0
"""For pasted lines to end; if they do not, no person reads the question."""

LEAST_DIGITS = 32
"""Of a digest: with fewer a program could make two things that begin alike, and show one."""

MAX_LINE_BYTES = 4096
"""Of an answer, as much as a kernel takes for one line."""


_RESET = "\x1b[?1047l\x1b[0m\x1b(B\x0f\x1b[?25h"
"""Resets the screen, attributes, letters and cursor."""

_REVERSE = "\x1b[7m"


class Person:
    """Reads from one stream and writes to another; both have to be a terminal to ask.

    Args:
        drawn: Whether the terminal knows attributes.
    """

    def __init__(self, reader: TextIO, writer: TextIO, *, drawn: bool = True) -> None:
        self._reader = reader
        self._writer = writer
        self._drawn = drawn

    @property
    def attended(self) -> bool:
        """Whether a person can be asked here."""
        return self._reader.isatty() and self._writer.isatty()

    def begin(self, who: str) -> None:
        """Begin a question on a line of its own, that nothing from elsewhere can look like.

        Programs and servers reach a terminal without the attributes in which it is written.
        """
        line = visible(f" {who} ", keep="")
        marked = f"{_RESET}\n{_REVERSE}{line}\x1b[0m\n" if self._drawn else f"\n=={line}==\n"
        self._writer.write(marked)
        self._writer.flush()

    def say(self, text: str) -> None:
        """Write a text from anywhere, with nothing in it that a terminal obeys."""
        self._writer.write(visible(text))
        self._writer.flush()

    async def ask(self, prompt: str) -> str | None:
        """Return the line that is typed once the prompt stands there.

        Returns:
            None for no answer: the end of input (Ctrl-D), a terminal that is gone or does not come
            to rest, more than a line takes.
        """
        try:
            if not await self._drop_typed():
                return None
            self.say(prompt)
            line = await self._line()
            # What follows an answer is not left for the terminal's next reader.
            termios.tcflush(self._reader, termios.TCIFLUSH)
        except (OSError, termios.error):
            return None
        return line

    async def agrees(self, prompt: str) -> bool:
        """Return whether a person says yes; ask again if the text is no answer."""
        for _ in range(MAX_TRIES):
            line = await self.ask(f"{prompt} yes or no: ")
            answer = (line or "").strip().lower()
            if line is None or answer in ("", "n", "no"):
                return False
            if answer in ("y", "yes"):
                return True
            self.say(f"  {visible(answer[:60], keep='')} is no answer to this.\n")
        return False

    async def approves(
        self, name: str, digest: str, digits: str, *, shown: str, question: str, command: str
    ) -> bool:
        """Return whether a person approves of something, by its digest or when asked.

        What a name stands for may change at any moment, so it says nothing of what was seen.

        Args:
            digits: Of a digest that was given with the name; empty for none.
            shown: All that is approved.
            command: What is typed to have it shown.

        Raises:
            UsageError: It is not the one that was shown, or there is no person to ask.
        """
        look = f"Look at it: `mcp-code-bridge {command} {name}` shows it."
        own = digest.removeprefix("sha256:")
        if digits:
            given = digits.lower().removeprefix("sha256:")
            if len(given) < LEAST_DIGITS:
                message = f"{name}@{given}: a digest takes {LEAST_DIGITS} digits at least."
                raise UsageError(message, remedy=look)
            if not own.startswith(given):
                raise UsageError(f"{name} is not what was shown.", remedy=look)
            return True
        if self.attended:
            self.begin("mcp-code-bridge asks")
        self.say(shown)
        if not self.attended:
            message = f"May {name} be used as it is shown here? It may have changed since."
            remedy = f"If so: `mcp-code-bridge {command} {name}@{own[:LEAST_DIGITS]}`."
            raise UsageError(message, remedy=remedy)
        agreed = await self.agrees(question)
        if not agreed:
            tell(f"{name} was not approved.")
        return agreed

    async def _drop_typed(self) -> bool:
        """Drop what was typed until now; return whether that has an end."""
        descriptor = self._reader.fileno()
        with anyio.move_on_after(MAX_UNQUIET_SECONDS):
            while True:
                termios.tcflush(descriptor, termios.TCIFLUSH)
                with anyio.move_on_after(QUIET_SECONDS):
                    await anyio.wait_readable(descriptor)
                    continue
                # Of a line that is not complete nothing was to be seen.
                termios.tcflush(descriptor, termios.TCIFLUSH)
                return True
        return False

    async def _line(self) -> str | None:
        # Past the stream's own buffer, which may hold what was typed earlier. By then a terminal
        # has a whole line; a thread that reads could not be cancelled.
        typed = b""
        while b"\n" not in typed:
            await anyio.wait_readable(self._reader.fileno())
            piece = os.read(self._reader.fileno(), MAX_LINE_BYTES)
            typed += piece
            if not piece or len(typed) > MAX_LINE_BYTES:
                return None
        line, _, _ = typed.partition(b"\n")
        return line.decode(self._reader.encoding or "utf-8", "replace")
