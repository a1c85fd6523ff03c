"""The processes below the supervisor, file descriptors, and a run's way to its worker."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import fcntl
import os
import resource
import sys
import time
from collections import deque
from itertools import islice

from bridge.guest.protocol.wire import Run, WireError, decode_host_frame, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

    from bridge.guest.protocol.wire import Done

PR_SET_PDEATHSIG = 1  # The kernel sends a signal to this process when its parent ends.
PR_SET_DUMPABLE = 4  # With 0, other processes of this user cannot read this one's memory.
PR_SET_CHILD_SUBREAPER = 36  # This process becomes the parent of its descendants' orphans.

LENGTH_BYTES = 8  # Size of the number in front of each run in the control pipe.

CHUNK_BYTES = 256 * 1024  # Bytes read per system call at most.

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # Bytes per unit of `ru_maxrss`.

EXIT_NOTICE = b'{"type":"leaving",'
"""The beginning of a worker's exit notice: its last line, with exit code, CPU time and peak memory.
It saves the milliseconds that the kernel takes to end a process. A program that forges it only ends
its own run."""

PLACED_NOTICE = b'{"type":"placed",'
"""The beginning of a worker's line that lists the working directory before the program runs:
"files" has the version of each. A program that forges it only hides its own files."""


def prctl(option: int, value: int) -> bool:
    """Set a process attribute; return whether that succeeded."""
    try:
        import _ctypes  # the core of `ctypes`, whose own import takes milliseconds

        class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "i"

        class Function(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL
            _restype_ = Int

        call: Any = Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]
        return bool(call(option, value, 0, 0, 0) == 0)
    except Exception:
        # No Linux, ctypes, libffi or symbol: these attributes are only a second defence.
        return False


class Children:
    """Every process below this one."""

    def __init__(self) -> None:
        self.is_init = os.getpid() == 1
        self.adopts_orphans = self.is_init
        self.worker = 0
        self.status: Optional[int] = None
        self.cpu_seconds = 0.0
        self.peak_bytes = 0

    def reap(self) -> bool:
        """Reap every ended child; return whether any children are left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_seconds += usage.ru_utime + usage.ru_stime
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * RSS_UNIT)
            if pid == self.worker:
                self.status = status

    def kill_all(self) -> None:
        if not self.reap() and self.adopts_orphans:
            # Orphans would be children of this process: there are none to look for.
            return
        deadline = time.monotonic() + 2.0
        self.send_kill()
        while self.reap() and time.monotonic() < deadline:
            # Most processes are gone in a millisecond or two.
            time.sleep(0.0002)
            self.send_kill()

    def send_kill(self) -> None:
        if self.is_init:
            # Everything in this process namespace except PID 1, atomically.
            kill(-1)
            return
        if self.worker and self.status is None:
            kill(-self.worker)
        for pid in descendants(os.getpid()):
            kill(pid)


def descendants(ancestor: int) -> List[int]:
    """Return the ids of the processes below `ancestor`; empty without /proc."""
    children: Dict[int, List[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                # The command's name is in brackets and may contain brackets.
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    found: List[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def cpu_clock(pid: int) -> float:
    """Return the CPU seconds that a process has used; 0 where the system does not report it."""
    try:
        # How Linux numbers a process's own clock (clock_getcpuclockid).
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, AttributeError):
        return 0.0


def kill(pid: int) -> None:
    """Send SIGKILL to a process, or to a group by its negative id, if it exists."""
    try:
        os.kill(pid, _signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def private(fd: int) -> int:
    """Return a high, close-on-exec duplicate of `fd`, which is closed."""
    # Programs that close "everything from 3 to 255" before a fork are common.
    for lowest in (900, 200, 64, 3):
        try:
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(fd)
        return copy
    return fd


def claim_channel() -> "tuple[int, int]":
    """Move the channel from fd 0 and 1; return its reading and its writing descriptor.

    Afterwards 0 is empty and 1 is stderr: a stray print cannot corrupt a frame.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    reader = private(os.dup(0))
    os.dup2(null, 0, inheritable=True)
    if null > 2:
        os.close(null)
    writer = private(os.dup(1))
    os.dup2(2, 1, inheritable=True)
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    return reader, writer


def close_others(keep: Collection[int]) -> None:
    try:
        opened = set(map(int, os.listdir("/dev/fd")))
    except (OSError, ValueError):
        opened = set(range(1024))  # The system does not list them.
    for fd in opened.difference(keep):
        try:
            os.close(fd)
        except OSError:
            # Not open: the listing's own descriptor, or an assumed one.
            continue


def read_some(fd: int) -> Optional[bytes]:
    """Return available bytes of a non-blocking descriptor: None for none yet, empty at its end."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        # A reset socket counts as the end.
        return b""


class Outbox:
    """A queue of bytes to write to a non-blocking descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self.broken = False
        self._chunks: Deque[memoryview] = deque()

    def put(self, *parts: bytes) -> None:
        """Queue bytes, unless the reader has closed its end."""
        for data in parts:
            if data and not self.broken:
                self._chunks.append(memoryview(data))
                self.size += len(data)

    def drop(self) -> None:
        """Drop the queue: the reader has closed its end."""
        self.broken = True
        self._chunks.clear()
        self.size = 0

    def flush(self) -> None:
        """Write as much as the descriptor takes without blocking, waking its reader once."""
        while self._chunks:
            try:
                # As many as POSIX promises to take.
                written = os.writev(self.fd, list(islice(self._chunks, 16)))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.drop()
                return
            self.size -= written
            while written:
                chunk = self._chunks.popleft()
                if written < len(chunk):
                    self._chunks.appendleft(chunk[written:])
                written -= min(written, len(chunk))


def file_version(found: os.stat_result) -> Tuple[int, int, int, int]:
    """Return a file's inode, size, and times of content change and of any change."""
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_run(fd: int) -> Run:
    """Return the next run; the descriptor has its length, then its line."""
    with open(fd, "rb", closefd=False) as pipe:
        size = int.from_bytes(pipe.read(LENGTH_BYTES), "big")
        line = pipe.read(size)
    if not size or len(line) < size:
        # The supervisor closed the descriptor: no run will come.
        os._exit(0)
    frame = decode_host_frame(line)
    if not isinstance(frame, Run):
        raise WireError("the first frame is no run")
    return frame


def last_lines(done: Done, before: float) -> bytes:
    """Return a run's outcome and the exit notice, also after an incomplete line of the program's.

    `before` is `cpu_seconds()` when the program began.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = cpu_seconds() - before
    peak = max(own.ru_maxrss, children.ru_maxrss) * RSS_UNIT
    notice = b'\n%b%b"code":%d,"cpu_ms":%d,"peak_memory_bytes":%d}\n'
    return notice % (encode(done), EXIT_NOTICE, done.exit_code, cpu * 1000, peak)


def cpu_seconds() -> float:
    """Return the CPU seconds used by this process and its reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
