"""How a run is getting on: what is known of it while it goes on.

Owns what is made of a program's own reports, its calls and its output, as a line for whoever waits.
Everything here comes from the program, so that each text has a bound and holds nothing that a
terminal obeys. No I/O, and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.gate.tally import Tally
from bridge.text import counted, visible

MAX_MESSAGE = 200
MAX_LINE = 200
MAX_NAME = 100
"""Characters of a program's own report, of a line of its output, and of a tool that it calls."""

_LOOK_BACK = 4 * MAX_LINE
"""Bytes at the end of what was written in which its last line is looked for."""


class Standing:
    """What is known of one run.

    Attributes:
        done, total: How far the program says it is; `total` is 0 where it does not know.
        message: What it says of it.
        line: What it wrote last, without the rest.
        calls, ended: Tool calls that were begun, and those that are over.
        changes: A number that grows with all of this.
        tally: What became of its calls; None as long as it has not begun.
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

    def queued(self, ahead: int | None) -> None:
        """Take in how many runs are to begin before this one; None once it may begin."""
        self._ahead = ahead
        self.changes += 1

    @property
    def call(self) -> str:
        """The call that is under way, of several the one that began last; empty for none."""
        return next(reversed(self._under_way.values()), "")

    @property
    def share(self) -> float | None:
        """How much of the work is done, from 0 to 1; None if the program has not said."""
        if not self._reported or self.total <= 0:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    def advance(self, done: float, total: float, message: str) -> None:
        """Take in what the program says."""
        self._reported = True
        self.done, self.total = (
            float(number) if math.isfinite(number) else 0.0 for number in (done, total)
        )
        self.message = told(message, MAX_MESSAGE)
        self.changes += 1

    def wrote(self, data: bytes) -> None:
        """Take in what it wrote to stdout."""
        # Bars are drawn again and again in one line, so that what counts is what came last.
        recent = self._unended + data[-_LOOK_BACK:].decode("utf-8", "replace")
        lines = recent.replace("\r", "\n").split("\n")
        self._unended = lines[-1][-_LOOK_BACK:]
        last = next((line for line in reversed(lines) if line.strip()), "")
        if last:
            self.line = told(last.strip(), MAX_LINE)
            self.changes += 1

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Have a call under way."""
        self.calls += 1
        number = self.calls
        self._under_way[number] = told(name, MAX_NAME)
        self.changes += 1
        try:
            yield
        finally:
            del self._under_way[number]
            self.ended += 1
            self.changes += 1

    def text(self) -> str:
        """Return all of it in a line; empty if nothing is known."""
        parts = [self.queue_text(), self.own_text(), self.call_text(), self.line]
        return " · ".join(part for part in parts if part)

    def queue_text(self) -> str:
        """Return what it waits for before it begins: "waiting: 3 runs ahead of this one"."""
        if self._ahead is None:
            return ""
        if self._ahead == 0:
            return "waiting: this run is next"
        return f"waiting: {counted(self._ahead, 'run')} ahead of this one"

    def own_text(self) -> str:
        """Return what the program says: "3 of 10, loading", or nothing."""
        if not self._reported:
            return ""
        count = f"{self.done:g}" if self.total <= 0 else f"{self.done:g} of {self.total:g}"
        return f"{count}, {self.message}" if self.message else count

    def call_text(self) -> str:
        """Return what it waits for: "calling git.log (3 of 10 done)", or nothing."""
        if not self.call:
            return ""
        if self.calls == 1:
            return f"calling {self.call}"
        return f"calling {self.call} ({self.ended:,} of {self.calls:,} done)"


def told(text: str, most: int) -> str:
    """Return a text that stays in its line and within its bound."""
    # Cut first: what is written out has several characters for one.
    shown = visible(text[: most + 1].replace("\n", " "), keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
