"""Says what programs see of /proc next to their own processes; backends cover all else.

The other entries are of the whole machine: times of key strokes, its hardware, the load of other
programs. Counters that programs can change and read exactly are a channel between two sandboxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

SHOWN: Mapping[str, str] = {
    "self": "the process's own",
    "thread-self": "the thread's own",
    "mounts": "a link to the process's own",
    "net": "a link to the process's own network namespace, which has no interface",
    "cpuinfo": "numpy and node choose code by the processor's features and count processors",
    "meminfo": "psutil, polars and the JVM size their memory by it; sysinfo(2) tells it, too",
    "stat": "psutil takes the boot time for each process from it, and node the processors",
    "filesystems": "psutil.disk_partitions reads which kinds there are",
    "uptime": "ps and psutil compute times from it; sysinfo(2) tells it, too",
    "loadavg": "os.getloadavg reads it; sysinfo(2) tells it, too",
    "version": "programs look for WSL in it; uname(2) tells it, too",
    "sys": "the settings below",
    "sys/kernel": "settings of the kernel: pid_max, cap_last_cap, random/uuid, overflowuid",
    "sys/vm": "malloc and jemalloc read overcommit_memory",
    "sys/net": "of the process's own network namespace",
}
"""What is not covered, and why."""

_COUNTS = ("sys/kernel/pty",)  # In a directory that is shown: all users' terminals.

_USUAL = """
acpi asound buddyinfo bus cgroups cmdline config.gz consoles crypto devices diskstats dma driver
dynamic_debug execdomains fb fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg
kpagecgroup kpagecount kpageflags latency_stats lockdep lockdep_chains lockdep_stats lock_stat locks
mdstat misc modules mtrr pagetypeinfo partitions pressure schedstat sched_debug scsi slabinfo
softirqs swaps sysrq-trigger sysvipc timer_list timer_stats tty vmallocinfo vmstat xen zoneinfo
sys/abi sys/crypto sys/debug sys/dev sys/fs sys/sunrpc sys/user
"""
"""What kernels have; engines ignore those that theirs does not have."""

_ENGINES_OWN = ("/sys/firmware", "/sys/devices/virtual/powercap")  # Masked by default.


def masked_here() -> tuple[tuple[str, bool], ...]:
    """Return the paths of this machine's /proc to cover, and whether each is a directory."""
    return tuple((f"/proc/{name}", Path("/proc", name).is_dir()) for name in _names_here())


def masked_by_engines(*, local: bool) -> list[str]:
    """Return the paths that an engine covers, on this machine or another."""
    names = dict.fromkeys((*_USUAL.split(), *_COUNTS, *(_names_here() if local else ())))
    paths = [f"/proc/{name}" for name in names]
    processors = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")
    return [*paths, *_ENGINES_OWN, *(map(str, processors) if local else ())]


def _names_here() -> Iterator[str]:
    with suppress(OSError):
        names = [path.name for path in Path("/proc").iterdir()]
        names += [f"sys/{path.name}" for path in Path("/proc/sys").iterdir()]
        yield from (name for name in names if not name.isdecimal() and name not in SHOWN)
    yield from (name for name in _COUNTS if Path("/proc", name).exists())
