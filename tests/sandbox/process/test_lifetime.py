"""How sandboxes begin and end, for whatever cause, and that they leave nothing.

Mandated by design.md's laws 3 and 5.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import LaunchError
from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.backend import Sandbox
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.sandbox import exit_report, parse_status
from tests.sandbox.process.rig import (
    FOREVER,
    PATIENCE,
    READY,
    exists,
    groups_of,
    left_groups,
    read_all,
    spec,
    wait_ready,
    with_argument,
)
from tests.waiting import until, until_exists

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def ready(backend: BubblewrapBackend, program: str = FOREVER) -> AsyncIterator[Sandbox]:
    async with backend.launch(spec(program)) as sandbox:
        await wait_ready(sandbox)
        yield sandbox


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


async def test_everything_dies_when_bubblewrap_is_killed(backend: BubblewrapBackend) -> None:
    with anyio.fail_after(PATIENCE):
        async with ready(backend) as sandbox:
            child = int(sandbox.id)
            os.kill(parent_of(child), signal.SIGKILL)
            assert await read_all(sandbox) == b""
            await until(lambda: not exists(child))
            report = await sandbox.wait()
            assert report.signal == signal.SIGKILL


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
    with late_bwrap(found.interpreter.executable, found.bwrap, mark) as (
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


async def test_a_living_bridge_is_not_reaped(backend: BubblewrapBackend) -> None:
    with anyio.fail_after(PATIENCE):
        await backend.reap()  # what bridges killed by earlier tests have left
        async with ready(backend) as sandbox:
            assert await backend.reap() == 0
            assert exists(int(sandbox.id))


async def test_the_program_ends_when_its_stdin_does() -> None:
    with anyio.fail_after(PATIENCE):
        async with BubblewrapBackend(environ=os.environ) as backend:
            async with backend.launch(spec(READY + "sys.stdin.read()\nprint('end')")) as sandbox:
                await wait_ready(sandbox)
                child = int(sandbox.id)
            assert not exists(child)


async def test_a_variable_cannot_smuggle_in_an_option(backend: BubblewrapBackend) -> None:
    """Options are separated by NUL, so a value that holds one is refused."""
    hostile = spec("print('ran')", env={"A": "1\0--share-net"})
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match="NUL"):
        async with backend.launch(hostile):
            pass


async def test_another_command_than_python_runs_as_well(backend: BubblewrapBackend) -> None:
    other = replace(
        spec(""), argv=("/usr/bin/python3", "-S", "-c", "import os; print(os.getpid())")
    )
    with anyio.fail_after(PATIENCE):
        async with backend.launch(other) as sandbox:
            assert await read_all(sandbox) == b"1\n"
            assert (await sandbox.wait()).exit_code == 0


async def test_a_step_of_the_stage_that_fails_keeps_the_program_from_running(
    backend: BubblewrapBackend,
) -> None:
    """No layer is left out because it did not work (law 4)."""
    found = await backend._look_around()
    broken = [
        replace(found, filters=(b"\0" * 8,)),
        replace(found, around=replace(found.around, masked=(("/proc/no-such", True),))),
    ]
    for state in broken:
        backend._found = state
        with anyio.fail_after(PATIENCE), pytest.raises(LaunchError):
            async with backend.launch(spec("print('ran')")):
                pass
    backend._found = found
    impossible = replace(Limits(), tmp_bytes=-1)
    with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match="mounting /tmp"):
        async with backend.launch(spec("print('ran')", limits=impossible)):
            pass


async def test_control_groups_hold_the_limits_while_it_runs(backend: BubblewrapBackend) -> None:
    found = await backend._look_around()
    limits = replace(Limits(), memory_bytes=96 * MEBIBYTE, pids=9, cpus=0.5)
    with anyio.fail_after(PATIENCE):
        async with backend.launch(spec(FOREVER, limits=limits)) as sandbox:
            await wait_ready(sandbox)
            started = read_groups(int(sandbox.id))
    wanted = {"memory": str(96 * MEBIBYTE), "pids": "10", "cpu": "50000"}
    assert started == {name: wanted[name] for name in sorted(found.around.controllers)}
    assert left_groups() == []


def read_groups(member: int) -> dict[str, str]:
    """Return the limits of this process's groups that hold `member`."""
    files = {
        "memory.limit_in_bytes": "memory",
        "memory.max": "memory",
        "pids.max": "pids",
        "cpu.max": "cpu",
        "cpu.cfs_quota_us": "cpu",
    }
    found = {}
    for directory in groups_of():
        assert str(member) in (directory / "cgroup.procs").read_text().split()
        for file, name in files.items():
            if (directory / file).exists():
                found[name] = (directory / file).read_text().split()[0]
    return dict(sorted(found.items()))


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
