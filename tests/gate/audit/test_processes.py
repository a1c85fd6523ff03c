"""The audit log and real processes: several at once, killed at any point, without room to write."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from bridge.cli.records import count_calls
from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.reading import BEGUN, EMPTY, read
from tests.audit_rig import kinds, records, whole, write

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "fakes" / "audited.py"


@asynccontextmanager
async def _started(
    directory: Path, *words: str, prefix: Sequence[str] = ()
) -> AsyncIterator[Process]:
    command = [*prefix, sys.executable, str(PROGRAM), str(directory), *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await anyio.open_process(command, env=env, stderr=None)
    try:
        with anyio.fail_after(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    return (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65_536)).decode()


@pytest.mark.parametrize(
    ("what", "recorded", "done"),
    [
        ("before", ["run", "call", "outcome"], "0\n"),
        ("recorded", ["run", "call", "outcome", "call"], "0\n"),
        ("done", ["run", "call", "outcome", "call"], "0\n1\n"),
    ],
)
async def test_a_bridge_killed_at_any_point_of_a_call_has_recorded_it_if_it_may_have_been_made(
    tmp_path: Path, what: str, recorded: list[str], done: str
) -> None:
    directory = tmp_path / "audit"
    async with _started(directory, what) as process:
        assert await _line(process) == "ready"
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    assert kinds(directory) == recorded
    assert (tmp_path / "done").read_text() == done
    assert whole(directory).notes == []
    assert count_calls(read(directory), ["server"]).groups["shop",]["unknown"] == (what != "before")
    log = AuditLog(directory)
    await write(log, "the next bridge")
    log.close()
    assert kinds(directory) == [*recorded, "run"]
    assert whole(directory).records == len(recorded) + 1


async def test_many_bridges_write_at_once_though_one_of_them_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    count = 150
    async with (
        _started(directory, "append", str(count)) as one,
        _started(directory, "append", str(count)) as two,
        _started(directory, "append", "100000") as third,
    ):
        assert await _line(third) == "ready"
        assert await _line(one) == "ready"
        os.kill(third.pid, signal.SIGKILL)
        assert [await process.wait() for process in (one, two)] == [0, 0]
        await third.wait()
    report = whole(directory)
    # It may have been killed in the midst of a line.
    assert [note.what for note in report.notes] in ([], [BEGUN], [EMPTY])
    assert report.files > 3
    written = [record["run"] for record in records(directory)]
    assert len(written) == report.records
    # Each of the two wrote all its numbers, and the third some.
    assert all(written.count(str(number)) >= 2 for number in range(count))


async def _fill(process: Process, directory: Path, *, again: bool = False) -> int:
    """Return how many calls were made until one could not be: all are on record, and whole."""
    if again:
        assert process.stdin is not None
        await process.stdin.send(b"again\n")
    found: dict[str, Any] = json.loads(await _line(process))
    assert found["error"].startswith("The audit log cannot be written (")
    assert "Make room on its disk" in found["remedy"]
    assert found["done"] == kinds(directory).count("call")
    # The outcome of the last one may be owed.
    assert found["done"] - kinds(directory).count("outcome") in (0, 1)
    assert whole(directory).notes == []
    return int(found["done"])


async def test_a_full_disk_stops_calls_and_leaves_no_half_record(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # Root needs no namespace of users for it, and may not be let have one.
    names = "-m" if os.geteuid() == 0 else "-Urm"
    script = (
        f"mount -t tmpfs -o size=64k,mode=0700 none {disk} && "
        f'head -c 20000 /dev/zero > {disk}/other && exec "$@"'
    )
    prefix = ["unshare", names, "--", "sh", "-c", script, "sh"]
    async with _started(disk / "audit", "fill", prefix=prefix) as process:
        # The program's own view of its disk.
        seen = Path(f"/proc/{process.pid}/root{disk}")
        done = await _fill(process, seen / "audit")
        assert done > 20
        assert await _fill(process, seen / "audit", again=True) == done
        (seen / "other").unlink()
        assert await _fill(process, seen / "audit", again=True) > done


async def test_a_write_that_succeeds_in_part_is_taken_back(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    prefix = ["prlimit", "--fsize=20000:40000", "--"]
    async with _started(directory, "fill", prefix=prefix) as process:
        done = await _fill(process, directory)
        assert done > 20
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (40_000, 40_000))
        assert await _fill(process, directory, again=True) > done
