"""The process that stays outside of a sandbox, and what it says of the one inside.

Owns the handles of the two processes known to the bridge: bubblewrap or a keeper, here called the
monitor, and the first process inside, whose end is the end of all the others: the kernel sees to
that in a process namespace, the keeper where there is none. Starting and ending a sandbox as a
whole is `sandbox`'s business.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress

import anyio
import anyio.lowlevel
import anyio.to_thread

from bridge.sandbox.process.pipes import read_now, wait_ready

MAX_INFO_BYTES = 64 * 1024
"""Of what the monitor says; some hundred bytes usually."""


class Monitor:
    """The process outside, and what it says of the one inside.

    Args:
        process: It.
        info: Where it says what it started and how that ended.
        keeps: Whether it is a keeper, which ends in order when asked to.
        handles: Whether processes are known by descriptors, as Linux has them. Without, the one
            inside is ended by asking the keeper, since its id may be another's by then.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        info: int,
        *,
        keeps: bool = False,
        handles: bool = True,
    ) -> None:
        self._process = process
        self._handle = os.pidfd_open(process.pid) if handles else -1
        self._ending = signal.SIGTERM if keeps else signal.SIGKILL
        self._info = info
        self._said = b""
        self._child_handle = -1
        self.child = 0
        self.exit_code: int | None = None
        os.set_blocking(info, False)

    @property
    def pid(self) -> int:
        """The monitor's process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the monitor has ended; it does so after everything inside."""
        return self._process.poll() is not None

    async def wait(self) -> None:
        """Wait for the monitor's end."""
        await anyio.lowlevel.checkpoint()
        if self._handle < 0:
            # Only the monitor has the other end, and lets go of it when it ends.
            while not self.listen():
                await wait_ready(anyio.wait_readable, self._info)
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return
        while not self.ended:
            await wait_ready(anyio.wait_readable, self._handle)
        self.listen()

    async def wait_child(self) -> None:
        """Wait until the monitor has said what it started, or has ended."""
        while not self.listen() and not self.child and not self.ended:
            await wait_ready(anyio.wait_readable, self._info)

    def listen(self) -> bool:
        """Take in what the monitor has said so far; tell whether that was all."""
        while self._info >= 0 and len(self._said) < MAX_INFO_BYTES:
            data = read_now(self._info)
            if data is None:
                self._understand()
                return False
            if not data:
                break
            self._said += data
        self._understand()
        return True

    def kill_child(self) -> None:
        """Kill the first process inside, and so all of them. Harmless when it has ended."""
        if self._child_handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child_handle, signal.SIGKILL)
        elif not self.ended:
            self._process.send_signal(self._ending)

    def kill(self) -> None:
        """Kill the monitor; the kernel then kills what it started."""
        # Not yet collected, or `send_signal` sees that it was: the id is no other's.
        self._process.kill()

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in (self._handle, self._info, self._child_handle):
            if descriptor >= 0:
                with suppress(OSError, ValueError):
                    anyio.notify_closing(descriptor)
                os.close(descriptor)
        self._handle = self._info = self._child_handle = -1

    def _understand(self) -> None:
        for key, value in understood(self._said).items():
            if key == "exit-code":
                self.exit_code = value
            elif key == "child-pid" and not self.child:
                self.child = value
                # Not yet collected by its parent, or gone for good: the id cannot be another's,
                # unless it was in the instant between.
                if self._handle >= 0:
                    with suppress(ProcessLookupError):
                        self._child_handle = os.pidfd_open(value)


def understood(said: bytes) -> dict[str, int]:
    """Read bubblewrap's status documents: one JSON object after another, the last maybe cut."""
    text = said.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    found: dict[str, int] = {}
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        try:
            document, position = decoder.raw_decode(text, position)
        except ValueError:
            return found
        if isinstance(document, dict):
            found.update({k: v for k, v in document.items() if isinstance(v, int)})
