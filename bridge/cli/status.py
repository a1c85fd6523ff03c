"""The status line at the bottom of the terminal, on stderr, that names what a command waits for.

A process has one. Other writers erase it with `hide_status` before they write.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from bridge.settings import Settings
from bridge.text import visible

if TYPE_CHECKING:
    from bridge.runs import Engine

_current: StatusLine | None = None


def can_move(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_drawn(stream: TextIO) -> bool:
    return can_move(stream) and not os.environ.get("NO_COLOR")


def hide_status() -> AbstractContextManager[None]:
    """Return a context that keeps the status line off the screen."""
    return nullcontext() if _current is None else _current.hide_status()


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show what the command waits for while this is open; yield a function that changes the text.

    An inner `waiting` replaces the text of the outer one. Without a terminal it does nothing.
    """
    with ExitStack() as stack:
        line = _current
        if line is None and can_move(sys.stderr):
            line = stack.enter_context(StatusLine(sys.stderr))
        before = line.text if line is not None else ""

        def say(new: str) -> None:
            if line is not None:
                line.text = new

        say(text)
        yield say
        say(before)


class StatusLine:
    """A terminal's status line, safe for use by several threads.

    Args:
        render: Returns the line's text; empty hides the line. By default it returns `text`.
    """

    def __init__(self, writer: TextIO, render: Callable[[], str] | None = None) -> None:
        # Imported here: `serve` does without it.
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
            console=Console(file=writer),
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
        global _current
        self._outer, _current = _current, self
        # A command may block the event loop, and a stopped terminal blocks this thread.
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        self._over.set()
        with self.hide_status():
            _current = self._outer

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

        frame = self._spinner.render(monotonic())
        shown = visible(self._shown, keep="")
        line = f"{frame} {shown}".encode(self._encoding, "replace").decode(self._encoding)
        return Text(line, no_wrap=True, overflow="ellipsis" if self._unicode else "crop")


@asynccontextmanager
async def open_engine(settings: Settings, *, patient: bool = False) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as stack:
        with waiting("finding servers and a sandbox"):
            from bridge.runs import open_engine as opened

            engine = await stack.enter_async_context(opened(settings, patient=patient))
        yield engine
