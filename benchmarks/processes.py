"""What the kernel says of processes: memory, CPU time, who belongs to whom. Linux."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.bench import BenchmarkError

TICKS = os.sysconf("SC_CLK_TCK")

_RESET_PEAK = "5"
"""Written to `clear_refs`: the peak starts again from what is resident now."""


def all_pids() -> set[int]:
    """Return every process there is."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def child_with(mark: str) -> int:
    """Return the child of this process that has `mark` in its environment.

    Raises:
        BenchmarkError: There is none, or more than one.
    """
    found = [
        pid
        for pid in all_pids()
        if parent(pid) == os.getpid() and mark.encode() in _read(pid, "environ")
    ]
    if len(found) != 1:
        message = f"{len(found)} processes could be the bridge; one was started."
        raise BenchmarkError(message)
    return found[0]


def parent(pid: int) -> int:
    """Return a process's parent; 0 when it is gone."""
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


def below(pids: Iterable[int], root: int) -> set[int]:
    """Return those of `pids` that descend from `root`."""
    parents = {pid: parent(pid) for pid in pids}
    found = {root}
    while True:
        more = {pid for pid, above in parents.items() if above in found} - found
        if not more:
            return found - {root}
        found |= more


def command(pid: int) -> str:
    """Return a process's command line, its words parted by blanks; empty when it is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in user space and in the kernel."""
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS if stat else 0.0


def pid_namespace(pid: int) -> str:
    """Name the pid namespace of a process; empty when it cannot be seen."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def resident_mb(pid: int) -> float:
    """Return a process's resident memory."""
    return _status_mb(pid, "VmRSS")


def proportional_mb(pid: int) -> float:
    """Return a process's memory, shared pages in part; all of them where that is hidden."""
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) / 1024
    return resident_mb(pid)


def reset_peak(pid: int) -> None:
    """Let the peak of a process's memory start again from now.

    Raises:
        BenchmarkError: The kernel does not let this user.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    except OSError as error:
        message = f"The kernel does not let the peak of memory be reset: {error}."
        raise BenchmarkError(message) from error


def watch_growth(pid: int) -> Callable[[], float]:
    """Begin to watch a process's memory; return what tells the MB by which it rose since."""
    before = resident_mb(pid)
    reset_peak(pid)
    return lambda: peak_mb(pid) - before


def peak_mb(pid: int) -> float:
    """Return the most memory that was resident since `reset_peak`."""
    return _status_mb(pid, "VmHWM")


def _status_mb(pid: int, name: str) -> float:
    for line in _read(pid, "status").splitlines():
        if line.startswith(f"{name}:".encode()):
            return int(line.split()[1]) / 1024
    return 0.0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
