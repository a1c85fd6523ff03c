"""What a client hears of a run while it goes on, and how often.

Owns the pace: output, calls and a program's own reports come as often as the program likes, and
only what stands at the moment of a report is told. Nobody waits for a client to take a report, but
for the task that makes them.

MCP wants the number of each report to be greater than the one before, which a program's own count
need not be. So it is the seconds that have passed, and their total is what it would be if the
program went on as it did: `seconds * total / done`, so that whoever draws a bar draws the program's
share.
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable

import anyio

from bridge.engine.standing import Standing

REPORT_SECONDS = 0.25
"""Between reports. Nobody reads faster, and what comes sooner is in the next."""

LAST_SECONDS = 1.0
"""For the last report, behind which the result waits."""

MAX_PIECE = 4000
"""Characters of output in one log message."""

MAX_LOGGED = 256 * 1024
"""Characters of output in all such messages of a run; a client puts them into a window."""

_SOURCE = "run_python"
"""Who says so, in log messages."""

Report = Callable[[], Awaitable[None]]
Log = Callable[[str, str, str], Awaitable[None]]


class LoggedOutput:
    """Output on its way into log messages: gathered, cut and counted. Pure."""

    def __init__(self) -> None:
        self._text = ""
        self._left_out = 0
        self._room = MAX_LOGGED
        self._said_so = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        """Take in what was written."""
        if self._said_so:
            return
        # The rest of a flood is not even decoded.
        text = self._decoder.decode(data[: 4 * MAX_PIECE])
        self._left_out += max(0, len(data) - 4 * MAX_PIECE)
        room = MAX_PIECE - len(self._text)
        self._text += text[:room]
        self._left_out += len(text[room:].encode())

    def take(self) -> str:
        """Return what is to be told now; empty for nothing."""
        if self._said_so or not (self._text or self._left_out):
            return ""
        text, self._text = self._text[: self._room], ""
        self._room -= len(text)
        if self._room <= 0:
            self._said_so = True
            return f"{text}\n[… further output is in the result only …]"
        if self._left_out:
            text = f"{text}\n[… {self._left_out:,} bytes are in the result only …]\n"
            self._left_out = 0
        return text


class Following:
    """Tells a client of one run, as long as `run` goes on.

    Args:
        standing: What is told.
        report: Reports what stands, or that the run goes on.
        log: Sends a log message: level, source and text. None if no output is to be logged.
        idle_seconds: After which it is reported that the run goes on.
    """

    def __init__(
        self, standing: Standing, report: Report, log: Log | None, idle_seconds: float
    ) -> None:
        self._standing = standing
        self._report = report
        self._log = log
        self._idle_seconds = idle_seconds
        self._logged = {"stdout": LoggedOutput(), "stderr": LoggedOutput()}
        self._told = 0
        self._news = anyio.Event()

    def wrote(self, stream: str, data: bytes) -> None:
        """Take in what the program wrote."""
        if stream == "stdout":
            self._standing.wrote(data)
        if self._log is not None:
            self._logged[stream].add(data)
        self.notice()

    def notice(self) -> None:
        """Say that there is something to tell."""
        self._news.set()

    async def run(self) -> None:
        """Tell, until cancelled."""
        while True:
            # At first, too: most runs are over by then.
            await anyio.sleep(REPORT_SECONDS)
            with anyio.move_on_after(self._idle_seconds) as idle:
                await self._news.wait()
            self._news = anyio.Event()
            await self.tell(idle=idle.cancelled_caught)

    async def conclude(self) -> None:
        """Tell what came last, of a run that is over, to a client that has heard of it before."""
        if self._told and self._told != self._standing.changes:
            with anyio.move_on_after(LAST_SECONDS):
                await self.tell()

    async def tell(self, *, idle: bool = False) -> None:
        """Tell what there is to tell now."""
        if idle or self._standing.changes != self._told:
            self._told = self._standing.changes
            await self._report()
        if self._log is not None:
            for stream, logged in self._logged.items():
                text = logged.take()
                if text:
                    level = "info" if stream == "stdout" else "notice"
                    await self._log(level, _SOURCE, text)
