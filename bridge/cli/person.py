"""Asks the user at a terminal and reads the answers. No other module does.

A line answers only the question that was shown when the user typed it. Text that was typed earlier,
or pasted together with another answer, is dropped.
"""

from __future__ import annotations

import os
import sys
import termios
from typing import TextIO

import anyio

from bridge.cli.output import can_move, hide_status, visible, write_err_line
from bridge.errors import UsageError

QUIET_SECONDS = 0.05
"""The pause in the input that a question waits for: pasted text arrives in pieces."""

MAX_UNQUIET_SECONDS = 5.0
"""The longest wait for that pause. Input without a pause does not come from a reader."""

LEAST_DIGITS = 32
"""The fewest digits of a digest: a program could create two definitions that share fewer."""

_RESET = "\x1b[?1047l\x1b[0m\x1b(B\x0f\x1b[?25h"
"""Resets the screen, attributes, character set and cursor."""


class Person:
    """The user at a terminal, who reads stderr and answers on stdin."""

    def __init__(self, reader: TextIO | None = None, writer: TextIO | None = None) -> None:
        self._reader = reader or sys.stdin
        self._writer = writer or sys.stderr

    @property
    def attended(self) -> bool:
        return self._reader.isatty() and self._writer.isatty()

    def write_heading(self, who: str) -> None:
        """Write the heading of a question.

        Programs and servers cannot imitate it: their text reaches a terminal without attributes.
        """
        line = visible(f" {who} ", keep="")
        marked = f"{_RESET}\n\x1b[7m{line}\x1b[0m\n"
        self._writer.write(marked if can_move(self._writer) else f"\n=={line}==\n")
        self._writer.flush()

    def write(self, text: str) -> None:
        with hide_status():
            self._writer.write(visible(text))
            self._writer.flush()

    async def ask(self, prompt: str) -> str | None:
        """Show a prompt and return the line that the user types.

        Return None for the end of input (Ctrl-D), a closed terminal, or input without a pause.
        """
        try:
            if not await self._drop_typed():
                return None
            with hide_status():
                self.write(prompt)
                try:
                    line = await self._line()
                except anyio.get_cancelled_exc_class():
                    self.write("\n")
                    raise
            if line is None:
                self.write("\n")
            # Input after the answer must not reach the terminal's next reader.
            termios.tcflush(self._reader, termios.TCIFLUSH)
        except (OSError, termios.error):
            return None
        return line

    async def confirm(self, prompt: str, *, default: bool = False) -> bool:
        while True:
            line = await self.ask(f"{prompt} [{'Y/n' if default else 'y/N'}] ")
            answer = (line or "").strip().lower()
            if line is not None and not answer:
                return default
            if line is None or answer in ("n", "no"):
                return False
            if answer in ("y", "yes"):
                return True
            self.write("  Please answer yes or no.\n")

    async def agrees(
        self, prompt: str, *, yes: bool, nothing: str = "No changes made", default: bool = False
    ) -> bool:
        """Return whether the user agrees, by --yes or when asked; `nothing` starts the error."""
        if yes:
            return True
        if not self.attended:
            raise UsageError(f"{nothing}: there is no terminal to ask on.", remedy="Pass --yes.")
        return await self.confirm(prompt, default=default)

    async def confirm_digest(
        self, name: str, digest: str, digits: str, *, shown: str, question: str, command: str
    ) -> bool:
        """Return whether the user approves a definition, by its digest's `digits` or when asked.

        A name is not enough: its definition may have changed since the user saw it.
        """
        look = f"Run `mcp-code-bridge {command} {name}` to see it."
        own = digest.removeprefix("sha256:")
        if digits:
            given = digits.lower().removeprefix("sha256:")
            if len(given) < LEAST_DIGITS:
                message = f"{name}@{given}: a digest needs at least {LEAST_DIGITS} digits."
                raise UsageError(message, remedy=look)
            if not own.startswith(given):
                raise UsageError(f"{name} has changed since it was shown.", remedy=look)
            return True
        if self.attended:
            self.write_heading("Approval needed")
        self.write(shown)
        if not self.attended:
            message = f"{name} was not approved: there is no terminal to ask on."
            approve = f"mcp-code-bridge {command} {name}@{own[:LEAST_DIGITS]}"
            raise UsageError(message, remedy=f"To approve exactly this definition: `{approve}`.")
        agreed = await self.confirm(question)
        if not agreed:
            write_err_line(f"{name} was not approved.")
        return agreed

    async def _drop_typed(self) -> bool:
        """Drop earlier input; return False if the input does not pause."""
        descriptor = self._reader.fileno()
        with anyio.move_on_after(MAX_UNQUIET_SECONDS):
            while True:
                termios.tcflush(descriptor, termios.TCIFLUSH)
                with anyio.move_on_after(QUIET_SECONDS):
                    await anyio.wait_readable(descriptor)
                    continue
                # An incomplete line does not make the descriptor readable.
                termios.tcflush(descriptor, termios.TCIFLUSH)
                return True
        return False

    async def _line(self) -> str | None:
        # The stream's buffer may contain earlier input, and a read in a thread could not be
        # cancelled. A readable terminal has a whole line.
        typed = b""
        while b"\n" not in typed:
            await anyio.wait_readable(self._reader.fileno())
            piece = os.read(self._reader.fileno(), 4096)
            typed += piece
            if not piece:
                return None
        line, _, _ = typed.partition(b"\n")
        return line.decode(self._reader.encoding or "utf-8", "replace")
