"""Bounds a sandbox's memory from outside where no control group does.

A thread adds up what the processes of a sandbox hold, as the kernel counts it, and kills them when
that passes the limit. It does not count reserved addresses: V8, Go and the JVM reserve gigabytes.

Enforces: the memory of all processes together, and of the files in memory-backed directories.

Does not: prevent the moment in which a program passes the limit. `rlimits` bounds each process in
the kernel, at several times the limit.

Verified: `tests/sandbox/process/test_memory_watch.py`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.sandbox.ownership import process_start
from bridge.sandbox.process.monitor import descendants, processes_by_proc

INTERVAL = 0.05
"""Seconds between two looks while memory is below the limit."""

RECHECK = 0.01
"""Seconds between two looks above it."""

LOOKS = 3
"""Looks above the limit before a kill. A process that its parent is just starting shares the
parent's memory for a millisecond, and both seem to hold it."""

_SIZE = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class MemoryWatch:
    """The memory of one sandbox.

    Args:
        monitor: The process outside, the ancestor of all processes of the sandbox.
        child: The first process inside; killed only if killing the others does not help.
        limit: Bytes.
        directories: Descriptors of the memory-backed directories; `run` closes them.

    Attributes:
        kills: How many processes it has killed.
    """

    def __init__(self, monitor: int, child: int, limit: int, directories: Iterable[int]) -> None:
        self._monitor = monitor
        self._start = process_start(monitor)
        self._child = child
        self._limit = limit
        self._directories = tuple(directories)
        self.kills = 0

    def run(self, wait: Callable[[float], bool]) -> None:
        """Watch until `wait`, which takes seconds, returns true."""
        looks = 0
        while not wait(RECHECK if looks else INTERVAL):
            looks = looks + 1 if self._exceeds_limit() else 0
            if looks and looks % LOOKS == 0:
                self._kill(with_child=looks > LOOKS)
        for descriptor in self._directories:
            os.close(descriptor)

    def _exceeds_limit(self) -> bool:
        sizes = [_sizes(f"/proc/{pid}/status") | {b"pid": pid} for pid in self._processes()]
        files = sum(map(_used_bytes, self._directories))
        # This is cheap, and too much where processes share pages.
        names = (b"RssAnon", b"VmSwap", b"VmPTE", b"RssShmem")
        if sum(size.get(name, 0) for size in sizes for name in names) + files <= self._limit:
            return False
        private = shared = 0
        for size in sizes:
            # A process that hides this has all its pages counted as its own.
            share = _sizes(f"/proc/{size[b'pid']}/smaps_rollup")
            private += size.get(b"VmPTE", 0) + share.get(b"Pss_Anon", size.get(b"RssAnon", 0))
            private += share.get(b"SwapPss", size.get(b"VmSwap", 0))
            shared += share.get(b"Pss_Shmem", size.get(b"RssShmem", 0))
        # A mapped file is in both.
        return private + max(shared, files) > self._limit

    def _processes(self) -> set[int]:
        """Return the sandbox's processes; empty when the monitor has ended."""
        found: set[int] = set()
        queue = [self._monitor]
        while queue:
            below = _children(queue.pop()) - found
            found |= below
            queue += below
        # Few kernels are built without lists of children.
        found = found or descendants(self._monitor, processes_by_proc())
        # If the monitor still lives, its number was no other process's meanwhile.
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


@contextmanager
def watch_memory(
    monitor: int, child: int, limit: int, directories: Iterable[str]
) -> Iterator[MemoryWatch]:
    """Watch a sandbox's memory while this is open; see `MemoryWatch`.

    Args:
        directories: The paths inside of the memory-backed directories.
    """
    opened: list[int] = []
    for path in directories:
        with suppress(OSError):
            opened.append(os.open(f"/proc/{child}/root{path}", os.O_PATH | os.O_CLOEXEC))
    over = threading.Event()
    watch = MemoryWatch(monitor, child, limit, opened)
    threading.Thread(target=watch.run, args=(over.wait,), name="memory", daemon=True).start()
    try:
        yield watch
    finally:
        over.set()


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may have ended.
        with suppress(OSError):
            found.update(map(int, file.read_bytes().split()))
    return found


def _sizes(path: str) -> dict[bytes, int]:
    """Return the sizes in a file of /proc, in bytes; empty if it cannot be read."""
    try:
        found = _SIZE.findall(Path(path).read_bytes())
    except OSError:
        return {}
    return {name: int(size) * 1024 for name, size in found}


def _used_bytes(directory: int) -> int:
    found = os.statvfs(directory)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
