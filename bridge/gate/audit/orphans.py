"""Ends, in the audit log, of runs whose bridge died: each run that began has exactly one.

Of several bridges, each holds a lock on a file of its own beside the log while it lives, and its
records name that file. Whoever of the others gets the lock knows that it died, and records the ends
that are missing. Only then does the file go, so that none is missed, or recorded twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

import anyio.to_thread

from bridge.atomic_files import exclusive_lock
from bridge.gate.audit.log import AuditLog, lines, opened
from bridge.gate.audit.records import Record, parsed

SUFFIX = ".live"

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Presence:
    """Says that this process lives.

    Attributes:
        signature: What each of its records has.
    """

    def __init__(self, directory: Path, replica: str) -> None:
        process = secrets.token_hex(8)
        self.signature: Record = {"replica": replica, "process": process}
        self._path = directory / f"{process}{SUFFIX}"
        self._descriptor: int | None = None

    def enter(self) -> None:
        """Take the lock, in the log's directory. Idempotent."""
        if self._descriptor is None:
            unlocked = self._path.with_suffix(".new")
            self._descriptor = os.open(unlocked, _NEW, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            unlocked.rename(self._path)

    def leave(self) -> None:
        """Give it back: there is nothing that another would have to end."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


async def end_orphans(log: AuditLog) -> int:
    """Record the ends of runs that dead bridges left without; return how many.

    Raises:
        AuditError: They cannot be recorded; the next call tries again.
        OSError: The log cannot be read.
    """
    ended = 0
    for path in sorted(log.directory.glob(f"*{SUFFIX}")) if log.directory else ():
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(path, seconds=0))
            except OSError:
                # It lives, or another is at it.
                continue
            for run in await anyio.to_thread.run_sync(_unended, path):
                await log.append({"kind": "end", "run": run, "status": "lost", "of": path.stem})
                ended += 1
            path.unlink(missing_ok=True)
    return ended


def _unended(path: Path) -> list[str]:
    """Return the runs that a process began and that have no end."""
    begun: dict[str, None] = {}
    ended: set[str] = set()
    if not path.exists():
        # Another was quicker.
        return []
    since, needle = path.stat().st_mtime, path.stem.encode()
    with opened(path.parent) as (folder, files):
        for file in files:
            # What is older than the process says nothing about it; the clock may be a coarse one.
            if os.stat(file.name, dir_fd=folder).st_mtime < since - 2:
                continue
            for line, _ in lines(folder, file.name):
                record = parsed(line) if needle in line else {}
                if record.get("kind") in {"run", "apply", "command"}:
                    begun[str(record.get("run"))] = None
                elif record.get("kind") == "end":
                    ended.add(str(record.get("run")))
    return [run for run in begun if run not in ended]
