"""A session's supervisor: one relay over many runs, and the wait between them.

Owns how a run is interrupted and how the next one gets to the session's process. Between runs the
program's output and calls stay where they are, in its pipes, until the next run begins.
"""

from __future__ import annotations

import os
import select
import signal
import time

from bridge.guest.capture import Capture
from bridge.guest.descriptors import Outbox, read_some
from bridge.guest.incoming import Incoming
from bridge.guest.processes import Children
from bridge.guest.relay import HostGoneError, Relay, Terminated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

GIVE_SECONDS = 15.0
"""For the session's process to take its next program in."""


class SessionRelay(Relay):
    """Moves bytes for one run after another.

    Args:
        control: By which later runs are given to the worker.

    Attributes:
        stopped: Whether the host asked for the end of the run.
    """

    def __init__(self, *, control: int, **options: Any) -> None:
        super().__init__(**options)
        self.stopped = False
        # One dictionary: a stream that has ended is gone from it for good.
        self._all_streams = self._streams
        self._control = Outbox(control)
        self._incoming = Incoming(self._set_clock, self._stop)
        os.set_blocking(control, False)

    def again(self, limits: Mapping[str, Any], deadline: float, quiet: bool = False) -> None:
        """Begin another run.

        Args:
            quiet: It is no program's: what threads write meanwhile is for the next that is.
        """
        self._streams = {} if quiet else self._all_streams
        output = int(limits.get("output_bytes", 256 * 1024))
        self._captures = {stream: Capture(stream, output) for stream in self._captures}
        self._deadline = deadline
        self._left = 0.0
        self._has_sent = False
        self._flush_at = None
        self.leaving = b""
        self.stopped = False

    def next_run(self, children: Children) -> Optional[bytes]:
        """Wait for the line of the next run; None if the session's process ends before.

        Raises:
            HostGoneError: The host closed the channel.
            Terminated: A signal asked for the end.
        """
        self._interest.clear()
        while True:
            if self._incoming.runs:
                self._fresh_poller()
                return self._incoming.runs.pop(0)
            if children.status is not None:
                return None
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            poller.register(self._host_reader, select.POLLIN)
            if self._host.size:
                poller.register(self._host.fd, select.POLLOUT)
            if self._to_worker.size and self._worker is not None:
                poller.register(self._worker, select.POLLOUT)
            poller.poll()
            self._host.flush()
            self._to_worker.flush()
            self._hear(children)

    def give(self, data: bytes, children: Children) -> bool:
        """Give the worker its next run; return whether it took all of it."""
        deadline = time.monotonic() + GIVE_SECONDS
        self._control.put(data)
        self._control.flush()
        while self._control.size:
            left = deadline - time.monotonic()
            if left <= 0 or self._control.broken or children.status is not None:
                return False
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            poller.register(self._control.fd, select.POLLOUT)
            poller.poll(int(left * 1000) + 1)
            self._control.flush()
            self._look_around(children)
        return not self._control.broken

    def _hear(self, children: Children) -> None:
        self._look_around(children)
        data = read_some(self._host_reader)
        if data:
            self.from_host(data)
        elif data is not None or self._host.broken:
            raise HostGoneError

    def _look_around(self, children: Children) -> None:
        noted = read_some(self._wake) or b""
        if {signal.SIGTERM, signal.SIGINT} & set(noted):
            raise Terminated
        if noted:
            children.reap()

    def _stop(self) -> None:
        """Have the run end as at its deadline, whether or not its time stands still."""
        self.stopped = True
        self._deadline = time.monotonic()

    def _fresh_poller(self) -> None:
        # What was watched may have been closed meanwhile.
        self._poller = select.poll()
        self._watched = None
