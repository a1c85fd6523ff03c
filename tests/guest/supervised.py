"""What the tests of the supervisor share: its processes, and the way to its channel."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.waiting import PATIENCE_SECONDS

FIND_CHANNEL = """
import os, stat
fd = max(n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}")
         and stat.S_ISSOCK(os.fstat(n).st_mode))
"""


def alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def gone(*pids: int) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110 - processes of strangers have no event
            await anyio.sleep(0.01)
