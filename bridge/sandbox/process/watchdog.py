"""Kills the launches in progress if the bridge is killed.

bubblewrap ties its life to the bridge's before it releases its child. Killed between the two, it
leaves a child that waits forever. So a small process next to the bridge lists the current launches.
"""

from __future__ import annotations

import logging
import os
import subprocess
from contextlib import suppress

logger = logging.getLogger(__name__)

_TEXT = """
held=" "
while read -r sign group; do
    case $sign in
    +) held="$held$group " ;;
    -) held="${held%% $group *} ${held#* $group }" ;;
    esac
done
for group in $held; do
    kill -s KILL -- "-$group"
done
"""
"""A shell script, since a shell takes a tenth of an interpreter's memory. It reads the groups of
launches; its input ends with the bridge."""


class LaunchWatchdog:
    """The process next to the bridge, between `start` and `close`."""

    def __init__(self, shell: str = "/bin/sh") -> None:
        self._shell = shell
        self._process: subprocess.Popen[bytes] | None = None
        self._input = -1
        self._watched: set[int] = set()

    def start(self) -> None:
        """Start the process. Idempotent; blocks for a millisecond.

        If it cannot start, a warning is logged and everything else works.
        """
        if self._process is not None:
            return
        reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [self._shell, "-c", _TEXT],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                # A signal to the bridge's group, such as Ctrl-C, must not end it first.
                start_new_session=True,
            )
        except OSError as error:
            os.close(writer)
            logger.warning("the launch watchdog did not start: %s: %s", self._shell, error)
            return
        finally:
            os.close(reader)
        os.set_blocking(writer, False)
        self._input = writer

    def watch(self, group: int) -> None:
        """Kill a process group if the bridge is killed before `unwatch`."""
        self._watched.add(group)
        self._send("+", group)

    def unwatch(self, group: int) -> None:
        """Remove a process group from the list. Idempotent."""
        if group in self._watched:
            self._watched.discard(group)
            self._send("-", group)

    def close(self) -> None:
        """End the process. Blocks for a millisecond; idempotent."""
        line, self._input = self._input, -1
        process, self._process = self._process, None
        if line >= 0:
            os.close(line)
        if process is None:
            return
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, sign: str, group: int) -> None:
        # A watchdog that was killed or stopped must not fail the launch.
        if self._input >= 0:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._input, f"{sign} {group}\n".encode("ascii"))
