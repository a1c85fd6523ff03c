"""Limits a sandbox's memory from outside if no cgroup does.

Enforces: the memory of all processes together, and the files in memory-backed directories. Reserved
addresses do not count: V8, Go and the JVM reserve gigabytes. A program can exceed the limit for a
moment; `rlimits` bounds each process.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bridge.sandbox.ownership import process_start
from bridge.sandbox.process.libseccomp import numbers
from bridge.sandbox.process.monitor import descendants, processes_by_proc

INTERVAL, RECHECK = 0.05, 0.01  # Seconds between two looks, below the limit and above it.
LOOKS = 3  # Looks above the limit before a kill: the processes' sizes are not read all at once.

_SIZE = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class MemoryWatch(threading.Thread):
    """Kills a sandbox's processes if they hold more than `limit` bytes.

    Args:
        child: The first process inside; killed only if to kill the others is not enough.
        directories: The memory-backed directories, as paths inside.
    """

    def __init__(self, monitor: int, child: int, limit: int, directories: Iterable[str]) -> None:
        super().__init__(name="memory", daemon=True)
        self._monitor, self._start = monitor, process_start(monitor)
        self._child, self._limit = child, limit
        self._directories: list[int] = []
        for path in directories:
            with suppress(OSError):
                self._directories.append(os.open(f"/proc/{child}/root{path}", os.O_PATH))
        self._over = threading.Event()
        self.stop = self._over.set
        self.kills = 0

    def run(self) -> None:
        looks = 0
        try:
            while not self._over.wait(RECHECK if looks else INTERVAL):
                looks = looks + 1 if self._exceeds_limit() else 0
                if looks and looks % LOOKS == 0:
                    self._kill(with_child=looks > LOOKS)
        except Exception:
            self._kill(with_child=True)  # Without the watch there is no limit.
            raise
        for descriptor in self._directories:
            os.close(descriptor)

    def _exceeds_limit(self) -> bool:
        used = map(os.statvfs, self._directories)
        files = sum((found.f_blocks - found.f_bfree) * found.f_frsize for found in used)
        threads = []
        for pid in self._processes():
            tids = [pid]
            with suppress(OSError):
                tids = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
            # A thread that has ended shows nothing of its process's memory.
            threads.append(next((tid for tid in tids if _sizes(tid, "status")), pid))
        # This is cheap, and too much where processes share pages.
        names = (b"RssAnon", b"VmSwap", b"VmPTE", b"RssShmem")
        held = [_sizes(thread, "status") for thread in threads]
        if sum(size.get(name, 0) for size in held for name in names) + files <= self._limit:
            return False
        private = shared = 0
        # Before any size is read again: no process joins another's address space later. A command
        # that is being started shares its parent's until it is executed.
        compare, number, memory = ctypes.PyDLL(None).syscall, numbers(("kcmp",))["kcmp"], 1
        first: list[int] = []
        for thread in threads:
            if all(compare(number, thread, other, memory, 0, 0) for other in first):
                first.append(thread)
        for thread in first:
            # A process that hides has no shares, and all its pages count as its own.
            size = _sizes(thread, "status") | _sizes(thread, "smaps_rollup")
            private += size.get(b"VmPTE", 0) + size.get(b"Pss_Anon", size.get(b"RssAnon", 0))
            private += size.get(b"SwapPss", size.get(b"VmSwap", 0))
            shared += size.get(b"Pss_Shmem", size.get(b"RssShmem", 0))
        # A mapped file is in both.
        return private + max(shared, files) > self._limit

    def _processes(self) -> set[int]:
        """Return the sandbox's processes; empty when the monitor has ended."""
        found: set[int] = set()
        queue = [self._monitor]
        while queue:
            below = _list_children(queue.pop()) - found
            found |= below
            queue += below
        # Few kernels are built without lists of children.
        found = found or descendants(self._monitor, processes_by_proc())
        # If the monitor still lives, its pid was not reused meanwhile.
        return found if process_start(self._monitor) == self._start else set()

    def _kill(self, *, with_child: bool) -> None:
        handles: dict[int, int] = {}
        for pid in self._processes():
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
        # A process listed after its handle was opened has that handle, or has ended.
        doomed = self._processes() & handles.keys()
        if not with_child and doomed != {self._child}:
            doomed.discard(self._child)
        for pid, handle in handles.items():
            if pid in doomed:
                self.kills += 1
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def _list_children(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # It may have ended, or a thread.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.update(map(int, (thread / "children").read_bytes().split()))
    return found


def _sizes(thread: int, file: str) -> dict[bytes, int]:
    """Return the sizes in a file of /proc, in bytes; empty if it cannot be read."""
    with suppress(OSError):
        content = Path(f"/proc/{thread}/{file}").read_bytes()
        return {name: int(size) * 1024 for name, size in _SIZE.findall(content)}
    return {}
