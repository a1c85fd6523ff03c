"""What a thread waits with for the answer to a call, where no event loop does.

Owns the one answer and the waiting for it. Who reads the channel meanwhile is `client`'s affair.
"""

from __future__ import annotations

import _thread
import select

from bridge.guest.values import MCPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_MILLISECONDS = 50
"""How long a thread that reads for itself looks at the channel; others may have read its answer."""


class Box:
    """Takes one answer, from any thread.

    Attributes:
        full: Whether it has.
    """

    def __init__(self) -> None:
        self.full = False
        self._answer: Any = None
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def fill(self, answer: Any) -> None:
        """Put the answer in; there is one only."""
        self._answer = answer
        self.full = True
        self._lock.release()

    def look_out(self, fd: int) -> None:
        """Wait until there is something to read, or the answer may have come otherwise."""
        if self.full:
            return
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(LOOK_MILLISECONDS)

    def value(self) -> Any:
        """Wait for the answer and return it, or raise it."""
        self._lock.acquire()
        if isinstance(self._answer, MCPError):
            raise self._answer
        return self._answer
