"""bubblewrap's own process, which stays outside, and what it says of the one inside.

Owns the handles of the two processes known to the bridge: bubblewrap, here called the monitor, and
the first process inside, whose end the kernel makes the end of every process in its namespace.
Starting and ending a sandbox as a whole is `sandbox`'s business.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress

import anyio
import anyio.lowlevel

from bridge.sandbox.process.pipes import read_now, wait_ready

MAX_INFO_BYTES = 64 * 1024
"""Of what bubblewrap says; some hundred bytes usually."""


class Monitor:
    """bubblewrap's own process, and what it says of the one inside."""

    def __init__(self, process: subprocess.Popen[bytes], info: int) -> None:
        self._process = process
        self._handle = os.pidfd_open(process.pid)
        self._info = info
        self._said = b""
        self._child_handle = -1
        self.child = 0
        self.exit_code: int | None = None
        os.set_blocking(info, False)

    @property
    def pid(self) -> int:
        """bubblewrap's process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether bubblewrap has ended; it does so after everything inside."""
        return self._process.poll() is not None

    async def wait(self) -> None:
        """Wait for bubblewrap's end."""
        await anyio.lowlevel.checkpoint()
        while not self.ended:
            await wait_ready(anyio.wait_readable, self._handle)
        self.listen()

    async def wait_child(self) -> None:
        """Wait until bubblewrap has said what it started, or has ended."""
        while not self.listen() and not self.child and not self.ended:
            await wait_ready(anyio.wait_readable, self._info)

    def listen(self) -> bool:
        """Take in what bubblewrap has said so far; tell whether that was all."""
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
            self.kill()

    def kill(self) -> None:
        """Kill bubblewrap; the kernel then kills what it started."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

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
