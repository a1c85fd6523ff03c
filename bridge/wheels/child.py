"""Running a resolver: one process, bounded, that ends with whoever wanted it.

Owns the process and its end. What it is told is `tools`' business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc

MAX_SAID = 64 * 1024
"""Kept of what it writes, from the end."""

_START = """
import os, resource, signal, sys
size, parent = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == parent:
    os.execv(sys.argv[3], sys.argv[3:])
"""
"""Ahead of the resolver: no file of it grows beyond a bound, and it does not outlive the bridge."""


Heard = Callable[[str], Awaitable[None]]
"""Told each line as it comes."""


async def run_child(
    argv: Sequence[str],
    environ: Mapping[str, str],
    place: Path,
    *,
    file_bytes: int,
    heard: Heard,
) -> tuple[int, str]:
    """Run a command to its end; return its status and the end of what it wrote.

    Cancelled, it and all that it started are killed first.

    Args:
        file_bytes: No file that it writes may be larger.
    """
    python = sys.executable
    words = [python, "-I", "-S", "-c", _START, str(file_bytes), str(os.getpid()), *argv]
    # Cancelled in the middle, it would leave a process that nobody waits for.
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            cwd=place,
            start_new_session=True,
        )
    tail = bytearray()
    try:
        assert process.stdout is not None  # it was asked for
        line = b""
        async for data in process.stdout:
            tail += data
            del tail[:-MAX_SAID]
            *lines, line = (line + data)[-MAX_SAID:].split(b"\n")
            for whole in lines:
                await heard(whole.decode("utf-8", "replace"))
        await process.wait()
    finally:
        await _end(process)
    return process.returncode or 0, tail.decode("utf-8", "replace")


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with anyio.CancelScope(shield=True):
        await process.wait()
        await process.aclose()
