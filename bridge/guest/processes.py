"""The processes below the supervisor: reaped, counted, killed.

Owns the few process attributes that need `prctl`, the reaping of every child and orphan, and the
killing of all that a run started. As PID 1 the kernel does most of it; elsewhere the supervisor
makes itself the parent of orphans and looks for its descendants.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # Bytes per unit of `ru_maxrss`.

EXIT_NOTICE = b'{"type":"leaving",'
"""How a worker's exit notice begins: its last line, with exit code, CPU time and peak memory. It
saves the milliseconds that the kernel takes to end a process. A program that forges it only ends
its own run."""

PLACED_NOTICE = b'{"type":"placed",'
"""How a worker's line begins that says what is in the working directory before the program runs:
"files" has the version of each. A program that forges it only hides files of its own."""


def _prctl(option: int, value: int) -> bool:
    """Set a process attribute; return whether that worked."""
    try:
        import _ctypes  # what `ctypes` is made of, without what takes milliseconds to import

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


def adopt_orphans() -> bool:
    """Make this process the parent of its descendants' orphans."""
    return os.getpid() == 1 or _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_tracing() -> bool:
    """Forbid other processes of this user to read this one's memory; return whether it worked."""
    return _prctl(_PR_SET_DUMPABLE, 0)


def allow_tracing() -> bool:
    """Undo `forbid_tracing` in a child, which could not use its own /proc files otherwise."""
    return _prctl(_PR_SET_DUMPABLE, 1)


def die_with_parent() -> bool:
    """Make the kernel kill this process when its parent ends; return whether it worked."""
    return _prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL)


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
            peak = usage.ru_maxrss * RSS_UNIT
            self.peak_bytes = max(self.peak_bytes, peak)
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
