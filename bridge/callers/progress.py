"""A run's progress, and its reports to the client.

All texts come from the program, so they are cut and have no control characters. Reports have the
current state only, so that the program never waits for the client. The value of a report is the
time in seconds, because it must grow; its total gives a client's bar the program's share.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from bridge.gate.pipeline import Tally
from bridge.text import counted, visible

MAX_TOLD = 200  # Characters of one text.


class RunProgress:
    """The progress of one run.

    `total` is 0 if the program does not know it. `line` is the last line of output. `changes`
    counts the updates.
    """

    def __init__(self) -> None:
        self.done = 0.0
        self.total = 0.0
        self.message = ""
        self.line = ""
        self.calls = 0
        self.ended = 0
        self.changes = 0
        self.tally: Tally | None = None
        self._reported = False
        self._under_way: dict[int, str] = {}
        self._unended = ""
        self._ahead: int | None = None

    def set_queue(self, ahead: int | None) -> None:
        """Set the number of runs that start before this one; None when it may start."""
        self._ahead = ahead
        self.changes += 1

    @property
    def call(self) -> str:
        """The name of the latest running tool call; empty for none."""
        return next(reversed(self._under_way.values()), "")

    @property
    def share(self) -> float | None:
        """The done share, from 0 to 1; None if the program does not report one."""
        if not self._reported or self.total <= 0:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    def advance(self, done: float, total: float, message: str) -> None:
        self._reported = True
        self.done, self.total = (
            float(number) if math.isfinite(number) else 0.0 for number in (done, total)
        )
        self.message = told(message)
        self.changes += 1

    def wrote(self, data: bytes) -> None:
        # A progress bar rewrites its line. The last version counts.
        recent = self._unended + data[-4 * MAX_TOLD :].decode("utf-8", "replace")
        lines = recent.replace("\r", "\n").split("\n")
        self._unended = lines[-1][-4 * MAX_TOLD :]
        last = next((line for line in reversed(lines) if line.strip()), "")
        if last:
            self.line = told(last.strip())
            self.changes += 1

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        self.calls += 1
        number = self.calls
        self._under_way[number] = told(name)
        self.changes += 1
        try:
            yield
        finally:
            del self._under_way[number]
            self.ended += 1
            self.changes += 1

    def text(self) -> str:
        parts = [self.queue_text(), self.own_text(), self.call_text(), self.line]
        return " · ".join(part for part in parts if part)

    def queue_text(self) -> str:
        """Return a text such as "waiting: 3 runs ahead of this one", or an empty string."""
        if self._ahead is None:
            return ""
        if self._ahead == 0:
            return "waiting: this run is next"
        return f"waiting: {counted(self._ahead, 'run')} ahead of this one"

    def own_text(self) -> str:
        """Return the program's report such as "3 of 10, loading", or an empty string."""
        if not self._reported:
            return ""
        count = f"{self.done:g}" if self.total <= 0 else f"{self.done:g} of {self.total:g}"
        return f"{count}, {self.message}" if self.message else count

    def call_text(self) -> str:
        """Return a text such as "calling git.log (3 of 10 done)", or an empty string."""
        if not self.call:
            return ""
        if self.calls == 1:
            return f"calling {self.call}"
        return f"calling {self.call} ({self.ended:,} of {self.calls:,} done)"


def told(text: str, most: int = MAX_TOLD) -> str:
    """Return a text on one line, cut to `most` characters, with control characters escaped."""
    # Cut first: an escape is longer than its character.
    shown = visible(text[: most + 1].replace("\n", " "), keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


REPORT_SECONDS = 0.25  # Between two reports.
MAX_PIECE = 4000  # Characters of a program's output in one log message.
MAX_LOGGED = 256 * 1024  # In all messages of a run: a client keeps them in its context.

Report = Callable[[], Awaitable[None]]
Log = Callable[[str, str, str], Awaitable[None]]


class LoggedOutput:
    """Output that waits for the next log message, with a limit for each message and for the run.
    Pure."""

    def __init__(self) -> None:
        self._text = ""
        self._left_out = 0
        self._room = MAX_LOGGED
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        if self._room <= 0:
            return
        # Decoding a flood takes too long.
        text = self._decoder.decode(data[: 4 * MAX_PIECE])
        room = MAX_PIECE - len(self._text)
        self._text += text[:room]
        self._left_out += max(0, len(data) - 4 * MAX_PIECE) + len(text[room:].encode())

    def take(self) -> str:
        if self._room <= 0 or not (self._text or self._left_out):
            return ""
        text, self._text = self._text[: self._room], ""
        self._room -= len(text)
        if self._room <= 0:
            return f"{text}\n[… further output is in the result only …]"
        if self._left_out:
            text = f"{text}\n[… {self._left_out:,} bytes are in the result only …]\n"
            self._left_out = 0
        return text


@dataclass(eq=False)
class ProgressReporter:
    """Reports one run to its client while `run` is active.

    Every `idle_seconds` it sends a report even if the state is unchanged.
    """

    run_progress: RunProgress
    report: Report
    log: Log | None
    idle_seconds: float

    def __post_init__(self) -> None:
        self._logged = {"stdout": LoggedOutput(), "stderr": LoggedOutput()}
        self._told = 0
        self._news = anyio.Event()

    def wrote(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            self.run_progress.wrote(data)
        if self.log is not None:
            self._logged[stream].add(data)
        self.notice()

    def notice(self) -> None:
        self._news.set()

    async def run(self) -> None:
        while True:
            # Most runs end before the first report.
            await anyio.sleep(REPORT_SECONDS)
            with anyio.move_on_after(self.idle_seconds) as idle:
                await self._news.wait()
            self._news = anyio.Event()
            await self.send(idle=idle.cancelled_caught)

    async def conclude(self) -> None:
        """Send the last state of a run if the client received an earlier one."""
        if self._told and self._told != self.run_progress.changes:
            # The result waits for this report.
            with anyio.move_on_after(1.0):
                await self.send()

    async def send(self, *, idle: bool = False) -> None:
        if idle or self.run_progress.changes != self._told:
            self._told = self.run_progress.changes
            await self.report()
        if self.log is not None:
            for stream, logged in self._logged.items():
                text = logged.take()
                if text:
                    level = "info" if stream == "stdout" else "notice"
                    await self.log(level, "run_python", text)
