"""How sandboxes begin and end, and that they leave nothing: design.md's laws 3 and 5."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import LaunchError
from bridge.model import Limits
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.monitor import descendants, parse_ps, processes_by_ps, relatives
from bridge.sandbox.process.sandbox import LaunchWatchdog, exit_report, parse_status
from tests.processes import processes
from tests.sandbox.process.rig import PATIENCE, spec
from tests.waiting import until, until_exists

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

ROOT = Path(__file__).parents[3]

LAUNCHER = """
import os, sys, anyio
from dataclasses import replace
from bridge.sandbox.process.backend import BubblewrapBackend
from tests.sandbox.process.rig import FOREVER, spec
async def main():
    forever = replace(spec(""), argv=("python3", "-c", FOREVER))
    async with BubblewrapBackend(environ=os.environ, bwrap=sys.argv[1]) as backend:
        async with backend.launch(forever):
            pass
anyio.run(main)
"""

LATE = """#!{python} -IS
import os, pathlib, signal, sys, time
options, bridge = int(sys.argv[2]), pathlib.Path("/proc", str(os.getppid()))
with open(options, "rb", closefd=False) as file:
    told = file.read()
reader, writer = os.pipe()
os.write(writer, told)
os.close(writer)
os.dup2(reader, options)
os.close(reader)
pathlib.Path({started!r}).touch()
while bridge.exists():
    time.sleep(0.01)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as it is without this
os.execv({bwrap!r}, sys.argv)  # by the name of this, which is marked
"""


@contextmanager
def late_bwrap(python: str, bwrap: str, mark: str) -> Iterator[tuple[Path, Path]]:
    """Make a bubblewrap that waits for its bridge's end, and the place where it says so."""
    with tempfile.TemporaryDirectory(prefix=mark) as made:
        directory = Path(made)
        directory.chmod(0o777)  # for any user
        script, started = directory / "bwrap", directory / "told"
        script.write_text(LATE.format(python=python, bwrap=bwrap, started=str(started)))
        script.chmod(0o755)
        yield script, started


async def test_a_bridge_that_is_killed_during_a_launch_leaves_nothing(
    backend: BubblewrapBackend,
) -> None:
    found = await backend._look_around()
    mark = f"launched-late-{os.getpid()}-"
    with late_bwrap(found.interpreter.executable, found.confiner, mark) as (script, started):
        argv = [sys.executable, "-c", LAUNCHER, str(script)]
        async with await anyio.open_process(argv, stdout=None, stderr=None, cwd=ROOT) as bridge:
            await until_exists(started)
            assert len(processes(mark)) > 1
            bridge.kill()
            await bridge.wait()
        try:
            await until(lambda: not processes(mark))
        finally:
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)
    await backend.reap()


async def test_a_variable_cannot_smuggle_in_an_option(backend: BubblewrapBackend) -> None:
    hostile = spec("print('ran')", env={"A": "1\0--share-net"})
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match="NUL"):
        async with backend.launch(hostile):
            pass


async def test_a_step_of_the_stage_that_fails_keeps_the_program_from_running(
    backend: BubblewrapBackend,
) -> None:
    found = await backend._look_around()
    around = replace(found.around, masked=(("/proc/no-such", True),))
    backend._found = replace(found, around=around)
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError):
        async with backend.launch(spec("print('ran')")):
            pass
    backend._found = found
    impossible = replace(Limits(), tmp_bytes=-1)
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match="mounting /tmp"):
        async with backend.launch(spec("print('ran')", limits=impossible)):
            pass


def test_status_documents_are_read_however_they_are_cut() -> None:
    received = b'{ "child-pid": 42, "net-namespace": 7 }\n{ "exit-code": 3 }\n'
    assert parse_status(received)["exit-code"] == 3
    assert "exit-code" not in parse_status(received[:-4])
    assert parse_status(received[:10]) == {}
    assert parse_status(b"") == {}
    assert parse_status(b"[1] \xff") == {}


def test_exit_codes_tell_signals_and_an_end_without_report_is_a_kill() -> None:
    """As with containers: 128 + n is death by signal n, when there is such a signal."""
    for code, expected in ((0, (0, None)), (3, (3, None)), (139, (None, 11)), (255, (255, None))):
        report = exit_report(code, oom_kills=0)
        assert (report.exit_code, report.signal, report.oom_killed) == (*expected, False)
    report = exit_report(None, oom_kills=None)
    assert (report.exit_code, report.signal, report.oom_killed) == (None, 9, None)


@contextmanager
def waiting() -> Iterator[subprocess.Popen[bytes]]:
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


MARK = "mcp-code-bridge_1_run"

ROWS = [
    (1, 0, 1, "Ss", "init"),
    (50, 1, 50, "S", f"monitor {MARK}"),
    (100, 50, 100, "S", f"python3 -c stage {MARK}"),
    (101, 100, 100, "R", f"python3 -c stage {MARK}"),
    (102, 101, 102, "S", "python3 -c other"),
    (103, 1, 102, "S", "python3 -c orphan in its group"),
    (104, 1, 104, "S", f"python3 -c stage {MARK}"),
    (105, 101, 100, "Z", "(python3)"),
    (200, 1, 200, "S", "somebody else"),
    (201, 200, 200, "S", "somebody else's child"),
]


def test_descendants_are_found_however_deep() -> None:
    pairs = [(row[0], row[1]) for row in ROWS]
    assert descendants(100, pairs) == {101, 102, 105}
    assert descendants(200, pairs) == {201}
    assert descendants(7, pairs) == set()
    assert descendants(1, [(1, 1)]) == {1}, "a loop ends"


def test_relatives_are_found_by_parent_group_and_mark() -> None:
    """Where orphans go to process 1: others and zombies are left out."""
    groups = {100}
    rows = [row for row in ROWS if row[0] != 50]
    assert relatives(rows, 100, groups, MARK) == {100, 101, 102, 103, 104}
    assert {100, 102} <= groups
    assert 200 not in groups
    # They are found when the first has gone.
    rows = [row for row in ROWS if row[0] in (101, 104, 200)]
    assert relatives(rows, 100, {100}, MARK) == {101, 104}
    assert relatives(rows, 100, {7}, "") == {101}, (
        "by its parent, and an empty mark fits no process"
    )
    # The monitor does not find itself.
    rows = [(os.getpid(), 1, 100, "S", f"monitor {MARK}")]
    assert relatives(rows, 100, {100}, MARK) == set()


def test_what_ps_prints_is_read() -> None:
    text = "  PID PPID\n   12     1    12 Ss   /sbin/x a b\n 13 12 12 Z\n\nnonsense\n 1 2 x S c\n"
    assert parse_ps(text) == [(12, 1, 12, "Ss", "/sbin/x a b"), (13, 12, 12, "Z", "")]


def test_ps_shows_this_very_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", MARK], stdin=subprocess.PIPE) as child:
        found = {row[0]: row for row in processes_by_ps()}
        child.communicate(b"\n")
    assert found[os.getpid()][1] == os.getppid()
    assert found[child.pid][1] == os.getpid()
    assert found[child.pid][2] == os.getpgrp()
    assert MARK in found[child.pid][4]
