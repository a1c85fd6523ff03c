"""The bridge's own log lines, so that no flood of them fills a disk or hides the others.

Owns what is passed on of lines that come from one place in the code, however they read: a server,
a program or a client can have a line written as often as it likes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_LINES = 50
"""From one place in the code, in each window."""

WINDOW_SECONDS = 10.0
"""What was left out of one is told with the first line of the next."""

MAX_MESSAGE = 4000
"""Characters of one message, before what is added to each line."""


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0


class RepeatedLines(logging.Filter):
    """Leaves out lines that come too often from one place, and says how many they were.

    Args:
        now: Seconds from a moment that never changes.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # One for each place in the code that writes lines, of which there are some hundreds.
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is written; it may be changed."""
        now = self._now()
        window = self._windows.setdefault((record.pathname, record.lineno), _Window(now))
        left_out = 0
        if now - window.began >= WINDOW_SECONDS:
            left_out = max(0, window.lines - MAX_LINES)
            window.began, window.lines = now, 0
        window.lines += 1
        if window.lines > MAX_LINES:
            return False
        text = record.getMessage()
        if len(text) > MAX_MESSAGE:
            text = f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)"
            record.msg, record.args = text, None
        if window.lines == MAX_LINES:
            text = f"{text} [more of these in the next {WINDOW_SECONDS:g} s are only counted]"
            record.msg, record.args = text, None
        if left_out:
            record.msg, record.args = f"{text} [repeated {left_out:,} times before]", None
        return True
