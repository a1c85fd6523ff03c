"""How sandboxes begin and end, for whatever cause, and that they leave nothing.

Mandated by design.md's laws 3 and 5.
"""

from __future__ import annotations

import os
import signal
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
from bridge.sandbox.process.sandbox import exit_report, parse_status
from tests.sandbox.process.rig import (
    PATIENCE,
    spec,
    with_argument,
)
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
        directory.chmod(0o777)  # whoever it runs as
        script, started = directory / "bwrap", directory / "told"
        script.write_text(LATE.format(python=python, bwrap=bwrap, started=str(started)))
        script.chmod(0o755)
        yield script, started


async def test_a_bridge_that_is_killed_during_a_launch_leaves_nothing(
    backend: BubblewrapBackend,
) -> None:
    """bubblewrap was told everything; no one would be there to hear what it started."""
    found = await backend._look_around()
    mark = f"launched-late-{os.getpid()}-"
    with late_bwrap(found.interpreter.executable, found.confiner, mark) as (
        script,
        started,
    ):
        argv = [sys.executable, "-c", LAUNCHER, str(script)]
        async with await anyio.open_process(argv, stdout=None, stderr=None, cwd=ROOT) as bridge:
            await until_exists(started)
            assert len(with_argument(mark)) > 1
            bridge.kill()
            await bridge.wait()
        try:
            await until(lambda: with_argument(mark) == [])
        finally:
            for pid in with_argument(mark):
                os.kill(pid, signal.SIGKILL)
    await backend.reap()


async def test_a_variable_cannot_smuggle_in_an_option(backend: BubblewrapBackend) -> None:
    """Options are separated by NUL, so a value that holds one is refused."""
    hostile = spec("print('ran')", env={"A": "1\0--share-net"})
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match="NUL"):
        async with backend.launch(hostile):
            pass


async def test_a_step_of_the_stage_that_fails_keeps_the_program_from_running(
    backend: BubblewrapBackend,
) -> None:
    """No layer is left out because it did not work (law 4)."""
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


@pytest.mark.parametrize(
    ("code", "exit_code", "number"), [(0, 0, None), (3, 3, None), (139, None, 11), (255, 255, None)]
)
def test_exit_codes_tell_signals(code: int, exit_code: int | None, number: int | None) -> None:
    """As with containers: 128 + n is death by signal n, when there is such a signal."""
    report = exit_report(code, oom_kills=0)
    assert (report.exit_code, report.signal, report.oom_killed) == (exit_code, number, False)


def test_an_end_that_nobody_reported_is_a_kill() -> None:
    report = exit_report(None, oom_kills=None)
    assert (report.exit_code, report.signal, report.oom_killed) == (None, 9, None)
