"""What watches the launches that are under way, for when the bridge is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bridge.sandbox.process.watchdog import LaunchWatchdog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")


@contextmanager
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """Start a group of processes that stays until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_is_held_when_its_line_ends_is_killed_and_nothing_else() -> None:
    watchdog = LaunchWatchdog()
    watchdog.start()
    with waiting() as first, waiting() as held, waiting() as last, waiting() as also:
        for process in (first, held, last, also):
            watchdog.watch(process.pid)
        for process in (last, first, first):
            watchdog.unwatch(process.pid)
        watchdog.close()
        assert (held.wait(), also.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
        assert (first.poll(), last.poll()) == (None, None)


def test_one_that_was_killed_or_never_there_takes_nothing_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended, absent = LaunchWatchdog("/bin/false"), LaunchWatchdog("/no/such/shell")
    for watchdog in (ended, absent):
        watchdog.start()
        watchdog.start()
        for _ in range(3):
            watchdog.watch(1 << 22)
            watchdog.unwatch(1 << 22)
        watchdog.close()
        watchdog.close()
    assert "watchdog did not start" in caplog.text
