"""Prints the output of commands: text, JSON and tables, and the status line of the terminal.

No other module of the commands writes to stdout and stderr. A terminal receives no control
characters. Pipes and files receive every byte. The status line, on stderr, names what a command
waits for. A command has one, and other writers erase it with `hide_status` before they write.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from bridge.cli.origin import ORIGIN, columns_of, stderr, stdout
from bridge.errors import BridgeError
from bridge.event_loop import LOG_FACTS, utc_text
from bridge.model import Json
from bridge.settings import Settings
from bridge.text import visible as visible
from bridge.text import visible_json

if TYPE_CHECKING:
    from bridge.runs import Engine


def can_move(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can redraw a line."""
    return stream.isatty() and ORIGIN.get().environ.get("TERM", "dumb") != "dumb"


def is_drawn(stream: TextIO) -> bool:
    return can_move(stream) and not ORIGIN.get().environ.get("NO_COLOR")


def hide_status() -> AbstractContextManager[None]:
    """Return a context that keeps the status line off the screen."""
    line = ORIGIN.get().status_line
    return nullcontext() if line is None else line.hide_status()


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show what the command waits for while this is open; yield a function that changes the text.

    An inner `waiting` replaces the text of the outer one. Without a terminal it does nothing.
    """
    with ExitStack() as stack:
        line: Any = ORIGIN.get().status_line
        if line is None and can_move(stderr()):
            line = stack.enter_context(StatusLine(stderr()))
        line = line or SimpleNamespace(text="")
        before, say = line.text, partial(setattr, line, "text")
        say(text)
        yield say
        say(before)


class StatusLine:
    """A terminal's status line, safe for use by several threads.

    It shows what `render` returns, by default `text`. An empty text hides the line.
    """

    def __init__(self, writer: TextIO, render: Callable[[], str] | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self.text = self._shown = ""
        self._encoding = writer.encoding or "utf-8"
        self._render = render or (lambda: self.text)
        self._unicode = self._encoding.lower() == "utf-8"
        self._spinner = Spinner("dots" if self._unicode else "line")
        self._live = Live(
            get_renderable=self._line,
            console=Console(
                file=writer, width=columns_of(writer) or None, _environ=ORIGIN.get().environ
            ),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=8,
        )
        self._hidden = 0
        self._changing = threading.RLock()
        self._over = threading.Event()
        self._outer: StatusLine | None = None

    def __enter__(self) -> StatusLine:
        origin = ORIGIN.get()
        self._outer, origin.status_line = origin.status_line, self
        # A command may block the event loop, and a stopped terminal blocks this thread.
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self.hide_status():
            ORIGIN.get().status_line = self._outer

    @contextmanager
    def hide_status(self) -> Iterator[None]:
        with self._changing:
            self._hidden += 1
            self._live.stop()
        try:
            yield
        finally:
            with self._changing:
                self._hidden -= 1

    def draw(self) -> None:
        with self._changing:
            idle = self._hidden or self._over.is_set()
            self._shown = "" if idle else self._render()
            if self._shown:
                self._live.start()
            else:
                self._live.stop()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self.draw()

    def _line(self) -> Any:
        from rich.text import Text

        frame = self._spinner.render(time.monotonic())
        shown = visible(self._shown, keep="")
        line = f"{frame} {shown}".encode(self._encoding, "replace").decode(self._encoding)
        return Text(line, no_wrap=True, overflow="ellipsis" if self._unicode else "crop")


@asynccontextmanager
async def open_engine(settings: Settings, *, patient: bool = False) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as stack:
        with waiting("finding servers and a sandbox"):
            from bridge.runs import open_engine as opened

            cwd, shared = ORIGIN.get().cwd or None, ORIGIN.get().shared
            opening = opened(settings, patient=patient, cwd=cwd, shared=shared)
            engine = await stack.enter_async_context(opening)
        yield engine


T = TypeVar("T")

# A server, a program or a client can repeat its messages without end.
MAX_LINES = 50  # Log lines per place in the code and window.
WINDOW_SECONDS = 10.0  # The first line of a window reports the omitted lines of the one before.
MAX_MESSAGE = 4000  # Characters of one log message, without its prefix.

_COLOURS: dict[str | None, str] = {
    None: "1",
    "  ": "36",
    **dict.fromkeys(("error:", "FAIL", "WRONG", "-"), "31"),
    **dict.fromkeys(("ok", "+"), "32"),
    **dict.fromkeys(("warning:", "off"), "33"),
    **dict.fromkeys(("hint:", "remedy:", "@"), "36"),
}
_WORD = re.compile(r"^ *(error:|FAIL|WRONG|ok|warning:|off|hint:|remedy:)(?=\s)", re.MULTILINE)
_CHANGED = re.compile(r"^([-+@]).*$", re.MULTILINE)
_NAMED = re.compile(r"^(?:Usage:|[A-Z][\w ]*:$|(  )\S+(?: \S+)*(?=  |$))", re.MULTILINE)
"""Coloured parts: words that begin a line, lines of a diff, and headings and names of help."""

NEVER_FULL = 1_000_000
"""Columns of a pipe: its reader expects each row whole on one line."""


PERSONAL = {
    "The client was asked whether to apply the plan, and declined.": "Plan declined.",
    "The client was asked whether": "You were asked whether",
    " Ask the user how to proceed; don't work around this.": "",
    "Ask the user how to proceed; don't work around this.": "",
    " Ask the user how to proceed.": "",
    "Only the user can allow it: they ": "To allow it, ",
    ". Or they ": ". Or ",
    "in a terminal, which asks them": "in a terminal, which asks you",
    "raise `timeout` (max": "raise --timeout (max",
}
"""Phrases of errors for a model, and their form for a user. The code raises errors in the form for
a model, since most errors reach one."""


def for_person(text: str) -> str:
    for words, personal in PERSONAL.items():
        text = text.replace(words, personal)
    return text


def write_out(text: str) -> None:
    _write(stdout(), text)


def write_err(text: str) -> None:
    _write(stderr(), text)


def write_err_line(text: str) -> None:
    """Write one line to stderr; line breaks in the text are escaped."""
    _write(stderr(), visible(text, keep="") + "\n", _WORD)


def write_warning(text: str) -> None:
    write_prose(f"warning: {visible(text)}\n", stderr())


def write_error(error: BridgeError) -> None:
    parts = " ".join(part for part in (error.message, error.host_detail) if part)
    write_prose(f"error: {visible(for_person(parts))}\n", stderr())
    if hint := for_person(error.remedy):
        write_prose(f"hint: {visible(hint)}\n", stderr())


def write_help(text: str) -> None:
    _write(stdout(), text, _NAMED)


def write_diff(text: str) -> None:
    _write(stdout(), text, _CHANGED)


def write_prose(text: str, stream: TextIO | None = None) -> None:
    """Write the bridge's own text, by default to stdout; a terminal gets lines wrapped by words.

    Continuation lines keep the indentation of their first line.
    """
    stream = stdout() if stream is None else stream
    if stream.isatty():
        from rich.console import Console
        from rich.text import Text

        width, broken = max(columns_of(stream), 40), []
        for line in visible(text).split("\n"):
            words = line.lstrip(" ")
            indent = " " * min(len(line) - len(words), 20)
            parts = Text(words).wrap(Console(file=stream, width=width), width - len(indent))
            broken += [f"{indent}{part.plain.rstrip()}" for part in parts or [Text()]]
        text = "\n".join(broken)
    _write(stream, text, _WORD)


def write_cut(lines: Iterable[str]) -> None:
    width = terminal_width() or NEVER_FULL
    for line in lines:
        text = visible(line, keep="")
        write_out(f"{text if len(text) <= width else text[: width - 1] + '…'}\n")


def write_json(value: Json, *, indent: int | None = None) -> None:
    """Write a value to stdout as JSON with every control character escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    write_out(f"{visible_json(text)}\n")


def write_list(
    records: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    none: str,
    *,
    as_json: bool,
    drop: Sequence[str] = (),
    below: str = "",
    fields: Callable[[T], Json] = lambda record: record,
) -> int:
    """Write records to stdout as JSON or as a table; return the exit status 0.

    Args:
        columns: Returns a record's cell, by the column's heading.
        none: The line for stderr if there are no records.
        drop: Headings of the columns that a narrow terminal omits, the first one first.
    """
    if as_json:
        write_json([fields(each) for each in records], indent=2)
    elif records:
        cells = [[cell(each) for cell in columns.values()] for each in records]
        text = table([*columns], cells, drop)
        with hide_status():
            stdout().write(_encodable(stdout(), text))
        write_out(below)
    else:
        write_err(f"{none}\n")
    return 0


def _write(stream: TextIO, text: str, marked: re.Pattern[str] | None = None) -> None:
    if stream.isatty():
        # A carriage return becomes a new line, so that no text overwrites another.
        text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _encodable(stream, text)
    if marked is not None and is_drawn(stream):
        text = marked.sub(lambda match: f"\x1b[{_COLOURS[match[1]]}m{match[0]}\x1b[0m", text)
    with hide_status():
        stream.write(text)
        stream.flush()


def _encodable(stream: TextIO, text: str) -> str:
    """Escape the characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class TerminalHandler(logging.StreamHandler[TextIO]):
    """Escapes control characters: log lines have names from other users' files."""

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return visible(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        with hide_status():
            super().emit(record)


@contextmanager
def hold_logs() -> Iterator[None]:
    handlers = ORIGIN.get().handlers or logging.getLogger().handlers
    holding = [(handler, list[logging.LogRecord]()) for handler in handlers]
    for handler, held in holding:
        # `append` returns None, so the filter drops the record.
        handler.addFilter(held.append)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for handler, held in holding:
            handler.removeFilter(held.append)  # type: ignore[arg-type]
            for record in held:
                handler.handle(record)


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object, with its bridge, run and owner if it has them."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": utc_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **LOG_FACTS.get(),
        }
        if record.exc_info:
            facts["exception"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps({name: text for name, text in facts.items() if text})


class RepeatedLines(logging.Filter):
    """A filter that omits too frequent log lines from one place in the code, and counts them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # The start of the window and its lines, by place in the code.
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, source = self._now(), (record.pathname, record.lineno)
        began, lines = self._windows.get(source, (now, 0))
        omitted = 0
        if now - began >= WINDOW_SECONDS:
            omitted = max(0, lines - MAX_LINES)
            began, lines = now, 0
        lines += 1
        self._windows[source] = began, lines
        if lines > MAX_LINES:
            return False
        text = record.getMessage()
        if len(text) > MAX_MESSAGE:
            text = f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"
        if lines == MAX_LINES:
            text = f"{text} [more of these in the next {WINDOW_SECONDS:g} s are only counted]"
        if omitted:
            text = f"{text} [repeated {omitted:,} times before]"
        record.msg, record.args = text, None
        return True


def terminal_width() -> int | None:
    """Return the columns of stdout's terminal; None if stdout is no terminal."""
    if not stdout().isatty():
        return None
    columns = ORIGIN.get().environ.get("COLUMNS", "")
    return max(int(columns) if columns.isdigit() else columns_of(stdout()) or 80, 40)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], drop: Sequence[str] = ()) -> str:
    """Return rows in columns, one per line.

    For a narrow terminal, the columns of `drop` go first, then the widest cells are cut. Cells are
    escaped down to line breaks, or a name could forge a row.
    """
    from rich.cells import cell_len, set_cell_size

    width = terminal_width() or NEVER_FULL
    cells = [[visible(cell, keep="") for cell in row] for row in (headings, *rows)]
    columns = {name: [row[at] for row in cells] for at, name in enumerate(headings)}
    widths = {name: max(map(cell_len, column)) for name, column in columns.items()}
    for name in drop:
        if sum(widths.values()) + 2 * len(widths) - 2 > width:
            del widths[name]
    while sum(widths.values()) + 2 * len(widths) - 2 > width:
        widest = max(widths, key=widths.__getitem__)
        if widths[widest] <= len(widest):
            break
        widths[widest] -= 1
    lines = []
    for at in range(len(cells)):
        parts = []
        for name, size in widths.items():
            cell = columns[name][at]
            fits = cell_len(cell) <= size
            parts.append(set_cell_size(cell, size) if fits else f"{set_cell_size(cell, size - 1)}…")
        lines.append("  ".join(parts).rstrip() + "\n")
    if is_drawn(stdout()):
        lines[0] = f"\x1b[1m{lines[0].rstrip()}\x1b[0m\n"
    return "".join(lines)
