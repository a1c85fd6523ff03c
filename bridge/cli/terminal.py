"""The user at a terminal: asks questions, and shows a run's output and status.

No other module reads answers. A line answers only the question that was shown when the user typed
it. Text that was typed earlier, or pasted together with another answer, is dropped.
"""

from __future__ import annotations

import json
import logging
import os
import termios
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, TextIO

import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from bridge.cli.origin import stderr, stdin
from bridge.cli.output import StatusLine, can_move, hide_status, hold_logs, visible, write_err_line
from bridge.errors import CannotAskError, UsageError
from bridge.event_loop import background_tasks
from bridge.model import Json
from bridge.text import VisibleDecoder

if TYPE_CHECKING:
    from bridge.callers.client import RunProgress

QUIET_SECONDS = 0.05
"""The pause in the input that a question waits for: pasted text arrives in pieces."""

MAX_UNQUIET_SECONDS = 5.0
"""The longest wait for that pause. Input without a pause does not come from a reader."""

LEAST_DIGITS = 32
"""The fewest digits of a digest: a program could create two definitions that share fewer."""

_RESET = "\x1b[?1047l\x1b[0m\x1b(B\x0f\x1b[?25h"
"""Resets the screen, attributes, character set and cursor."""


class Person:
    """The user of any command, for questions on stderr and answers on stdin."""

    def __init__(self, reader: TextIO | None = None, writer: TextIO | None = None) -> None:
        self._reader = reader or stdin()
        self._writer = writer or stderr()

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


logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 32 * 1024 * 1024  # Output that waits for its reader, such as a pager.

_BAR = 20  # Columns of the progress bar.

_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO}
_LEVELS["warning"] = logging.WARNING


class Terminal(Person):
    """The client of a run from a terminal. Its user answers questions. Its log shows progress."""

    identity: Hashable = "terminal"  # A process has one terminal.
    wants_output = False  # The output comes with the result.
    program = ""  # No program answers for the user.
    visits = False  # The user logs in with the command `login`.

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        super().__init__(reader, writer)
        self._screen = anyio.Lock()

    @property
    def wants_progress(self) -> bool:
        return self._writer.isatty() and logger.isEnabledFor(logging.INFO)

    @property
    def log_level(self) -> str:
        if logger.isEnabledFor(logging.DEBUG):
            return "debug"
        return "info" if logger.isEnabledFor(logging.INFO) else "warning"

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        logger.info("%s", visible(message, keep=""))

    async def log(self, level: str, source: str, data: Json) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        # On one line, or a second line could look like the bridge's own.
        logger.log(_LEVELS.get(level, logging.ERROR), "%s", visible(f"{source}: {text}", keep=""))

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask field by field while logs are held back; the end of input (Ctrl-D) declines."""
        if not self.attended:
            raise CannotAskError("No user can be asked: this run has no terminal.")
        async with self._screen:
            with hold_logs(), hide_status():
                message = str(params.get("message", ""))
                # A server's question begins with the server's name in brackets.
                asks = "A server asks" if message.startswith("[") else "Approval needed"
                self.write_heading(asks)
                self.write(f"{message}\n(Ctrl-D declines.)\n")
                if params.get("mode") != "url":
                    return await self._fill(params.get("requestedSchema"))
                where = f"Open {params.get('url', '')} in a browser, then press Enter: "
                return {"action": "decline" if await self.ask(where) is None else "accept"}

    async def sample(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        raise CannotAskError("No user can be asked: a terminal has no model to sample.")

    async def roots(self) -> list[Json]:
        return []

    async def _fill(self, schema: Json) -> Mapping[str, Json]:
        form = schema if isinstance(schema, dict) else {}
        fields, required = form.get("properties"), form.get("required")
        fields = fields if isinstance(fields, dict) else {}
        if len(fields) > 50:  # A user fills them in line by line.
            raise CannotAskError(f"The form has {len(fields)} fields, too many for a terminal.")
        content: dict[str, Json] = {}
        for name, field in fields.items():
            described = field if isinstance(field, dict) else {}
            needed, value = isinstance(required, list) and name in required, None
            while True:
                line = await self.ask(prompt(name, described, needed=needed))
                if line is None:
                    return {"action": "decline"}
                try:
                    value = read_field(described, line.strip(), needed=needed)
                    break
                except ValueError as error:
                    wrong = f"{line.strip():.60} is not a valid answer. " if line.strip() else ""
                    self.write(f"  {visible(wrong, keep='')}{error}\n")
            if value is not None:
                content[name] = value
        if not fields and await self.ask("Press Enter to accept: ") is None:
            return {"action": "decline"}
        return {"action": "accept", "content": content}


class LiveTerminal(Terminal):
    """A terminal that shows a run's output and status while `streaming` is open.

    The program's streams go to `out` and `err`, without control characters if that is a terminal.
    The program waits for the reader if the queue is full. A status line appears if it `shows` one.
    """

    def __init__(
        self, reader: TextIO, writer: TextIO, *, shows: bool, out: BinaryIO, err: BinaryIO
    ) -> None:
        super().__init__(reader, writer)
        self.run_progress: RunProgress | None = None
        self._status_line = StatusLine(writer, self._status) if shows else None
        self._started = 0.0
        self._at_line_start = True
        self._note = ""
        self._streams = {"stdout": out, "stderr": err}
        self._decoders = {
            name: VisibleDecoder() for name, stream in self._streams.items() if stream.isatty()
        }
        self._queued = 0
        self._tasks: TaskGroup

    @property
    def wants_progress(self) -> bool:
        return self._status_line is not None

    def follow(self, run_progress: RunProgress) -> None:
        self.run_progress, self._started, self._note = run_progress, monotonic(), ""

    def _status(self) -> str:
        """Return the status line; empty in a run's first 0.6 s and after an incomplete line."""
        if self.run_progress is None:
            return self._note or "starting a sandbox"
        seconds = monotonic() - self._started
        if not self._at_line_start or seconds < 0.6:
            return ""
        return status_text(self.run_progress, seconds, self._note)

    async def wrote(self, stream: str, data: bytes) -> None:
        """Queue output; if the queue is full, wait until it is written."""
        self._queued += len(data)
        if self._queued > MAX_QUEUED_BYTES:
            await self._write_next(stream, data)
        else:
            self._tasks.start_soon(self._write_next, stream, data)
            await anyio.lowlevel.checkpoint()  # The task takes its place before the next one.

    async def _write_next(self, stream: str, data: bytes) -> None:
        # The lock is fair: output keeps its order and does not delay a question.
        async with self._screen:
            # Abandoned on an interrupt, which a blocked reader must not delay.
            await anyio.to_thread.run_sync(self._write, stream, data, abandon_on_cancel=True)
        self._queued -= len(data)

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        from bridge.callers.client import told  # it imports the SDK

        self._note = told(message, 120)

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Draw the status while this is open; on exit, write all output."""
        with self._status_line or nullcontext():
            async with background_tasks() as self._tasks:
                try:
                    yield
                finally:
                    async with self._screen:  # After all queued output.
                        for name in self._decoders:
                            await anyio.to_thread.run_sync(self._write, name, b"", True)

    def _write(self, name: str, data: bytes, final: bool = False) -> None:
        stream, decoder = self._streams[name], self._decoders.get(name)
        if decoder is not None:
            data = decoder.decode(data, final=final).encode("utf-8", "backslashreplace")
        with hide_status() if decoder is not None else nullcontext():
            stream.write(data)
            stream.flush()
            if decoder is not None and data:
                # A program's own progress bar ends with "\r" and must not be overwritten.
                self._at_line_start = data.endswith(b"\n")


def status_text(run_progress: RunProgress, seconds: float, note: str = "") -> str:
    whole = int(seconds)
    time = f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"
    parts = [time, run_progress.own_text(), run_progress.call_text(), note]
    text = " · ".join(part for part in parts if part)
    share = run_progress.share
    if share is not None:
        full = round(share * _BAR)
        text = f"{'━' * full}{'╌' * (_BAR - full)} {int(share * 100):3d}% {text}"
    return text


def prompt(name: str, field: Mapping[str, Json], *, needed: bool) -> str:
    """Return the prompt for a field, with the titles of its choices above it."""
    choices, titles = _choices(field)
    listed, facts = "", [str(field.get("description") or "")]
    if titles:
        # One line each, or a title could look like another choice.
        listed = "".join(
            visible(f"  {number}. {title} [{choice}]", keep="") + "\n"
            for number, (choice, title) in enumerate(zip(choices, titles, strict=True), 1)
        )
        facts.append(f"1-{len(choices)}, or a word in brackets")
    elif choices:
        facts.append(f"one of {', '.join(map(str, choices))}")
    elif field.get("type") not in ("string", None):
        facts.append(str(field["type"]))
    if field.get("default") is not None:
        facts.append(f"default {field['default']}")
    elif not needed:
        facts.append("may be empty")
    about = "; ".join(filter(None, facts))
    title = field.get("title") or name
    return listed + visible(f"{title} ({about}): " if about else f"{title}: ", keep="")


def read_field(field: Mapping[str, Json], text: str, *, needed: bool) -> Json:
    """Parse an answer; None for an empty one. A `ValueError` states the expected form."""
    kind = field.get("type")
    if not text:
        if needed and field.get("default") is None:
            raise ValueError("An answer is required.")
        return field.get("default")
    if kind == "array":
        return [item.strip() for item in text.split(",") if item.strip()]
    choices, titles = _choices(field)
    if choices:
        return _parse_choice(choices, titles, text)
    if kind == "boolean":
        if text.lower() not in _WORDS:
            raise ValueError("Answer yes or no.")
        return _WORDS[text.lower()]
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            whole = "a whole" if kind == "integer" else "a"
            raise ValueError(f"This must be {whole} number.") from None
    return text


def _parse_choice(choices: list[Json], titles: list[str], text: str) -> Json:
    words = [str(choice) for choice in choices]
    numbers = [str(number) for number, _ in enumerate(titles, 1)]
    for names in (words, numbers):
        if text in names:
            return choices[names.index(text)]
    if titles and text.lower() in _WORDS:
        # "yes" and "no" are accepted if exactly one choice means them.
        word = "yes" if _WORDS[text.lower()] else "no"
        firsts = [title.partition(",")[0].lower() for title in titles]
        matches = [choice for choice, first in zip(choices, firsts, strict=True) if first == word]
        if len(choices) == 2 and "no" in choices and word == "yes":
            matches = [choice for choice in choices if choice != "no"]
        if len(matches) == 1:
            return matches[0]
    raise ValueError(f"Choose one of {', '.join(words)}{', or its number' if titles else ''}.")


def _choices(field: Mapping[str, Json]) -> tuple[list[Json], list[str]]:
    """Return a field's choices, and their titles if all have one."""
    values, names, listed = (field.get(key) for key in ("enum", "enumNames", "oneOf"))
    if not isinstance(values, list):
        options = listed if isinstance(listed, list) else []
        options = [each for each in options if isinstance(each, dict) and "const" in each]
        values, names = ([each.get(key) for each in options] for key in ("const", "title"))
    titles = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return values, titles if len(titles) == len(values) else []
