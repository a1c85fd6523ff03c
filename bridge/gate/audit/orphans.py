"""Ends, in the audit log, of runs whose bridge died: each run that began has exactly one.

Of several bridges, each holds a lock on a file of its own beside the log while it lives, and its
records name that file. Whoever of the others gets the lock knows that it died, and records the ends
that are missing. Only then does the file go, so that none is missed, or recorded twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import anyio.to_thread

from bridge.atomic_files import exclusive_lock
from bridge.gate.audit.log import ALIVE, AuditLog
from bridge.gate.audit.reading import read
from bridge.gate.audit.records import when


async def end_orphans(log: AuditLog) -> int:
    """Record the ends of runs that dead bridges left without; return how many.

    Raises:
        AuditError: They cannot be recorded; the next call tries again.
        OSError: The log cannot be read.
    """
    ended = 0
    for path in sorted(log.directory.glob(f"*{ALIVE}")) if log.directory else ():
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
    runs: dict[str, bool] = {}  # Whether each is under way.
    if not path.exists():
        # Another was quicker.
        return []
    # What is older than the process says nothing about it; clocks may differ a little.
    since = when(path.stat().st_mtime - 3600)[:10]
    for record in read(path.parent, [path.stem], since=since):
        kind, run = record.get("kind"), str(record.get("run"))
        if kind in ("run", "apply", "command", "end"):
            # No order between the files of several bridges is relied on.
            runs[run] = kind != "end" and runs.get(run, True)
    return [run for run, under_way in runs.items() if under_way]
