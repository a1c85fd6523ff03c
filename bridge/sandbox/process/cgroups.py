"""The cgroups of one sandbox, in both versions, and the memory watch that replaces one.

Enforces: memory, processes and CPU of a sandbox's processes together, for each controller that is
writable here. `missing_controllers` gives the reason for the others. A process enters its cgroups
itself before it becomes bubblewrap: to move another costs 10 ms.

Without a memory controller a thread watches the memory of all processes together, and the files in
memory-backed directories. Reserved addresses do not count: V8, Go and the JVM reserve gigabytes. A
program can exceed the limit for a moment; `rlimits` bounds each process.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from bridge.background_instance import process_start
from bridge.errors import LaunchError
from bridge.model import Limits
from bridge.sandbox.ownership import Owner, is_dead
from bridge.sandbox.process.libseccomp import numbers
from bridge.sandbox.process.monitor import descendants, processes_by_proc

logger = logging.getLogger(__name__)

CONTROLLERS = ("memory", "pids", "cpu")

PREFIX = "mcp-code-bridge"

CPU_PERIOD = 100_000  # Microseconds; the kernel's own default.

MONITORS = 1
"""Processes in a cgroup that are not the program's: bubblewrap."""

_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 71; shift; done; shift; exec "$@"'
"""A shell script that enters the cgroups before `--` and executes the command after it."""


@dataclass(frozen=True, kw_only=True)
class CgroupParent:
    """A directory in which cgroups may be made."""

    directory: str
    controllers: frozenset[str]
    unified: bool  # Whether it is of version 2.


CgroupParents = tuple[CgroupParent, ...]
"""The parents of this bridge's cgroups: one per controller, or one on version 2."""


def limited_by(parents: CgroupParents) -> frozenset[str]:
    return frozenset().union(*(place.controllers for place in parents))


def candidate_parents(own: str, mounts: str) -> tuple[CgroupParent, ...]:
    """Return the directories to try, best first, from /proc/self/cgroup and .../mountinfo."""
    first: list[CgroupParent] = []
    unified: list[str] = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        wanted = frozenset(names.split(",")) & frozenset(CONTROLLERS)
        if number == "0" and not names:
            directory = _find_mount(path, mounts, "cgroup2")
            root = _find_mount("/", mounts, "cgroup2") or directory
            # A cgroup that holds processes, like the bridge's own, can have no limited ones below
            # it, so usually its parent works.
            while directory is not None and directory not in unified:
                unified.append(directory)
                if directory != root:
                    directory = str(PurePosixPath(directory).parent)
        elif wanted and (directory := _find_mount(path, mounts, "cgroup", wanted)):
            first.append(CgroupParent(directory=directory, controllers=wanted, unified=False))
    # Version 1 first: where both are mounted, it has the controllers.
    second = (CgroupParent(directory=d, controllers=frozenset(), unified=True) for d in unified)
    return (*first, *second)


def _find_mount(
    path: str, mounts: str, kind: str, controllers: frozenset[str] = frozenset()
) -> str | None:
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(types) < 3 or types[0] != kind:
            continue
        if not controllers <= set(types[2].split(",")):
            continue
        root, mount = fields[3], fields[4]
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return mount.rstrip("/") + path[len(root.rstrip("/")) :].rstrip("/")
        if path == "/":
            return mount
    return None


def group_name(owner: Owner, nonce: str) -> str:
    return f"{PREFIX}_{owner}_{nonce}"


def group_owner(name: str) -> Owner | None:
    """Return the owner in a cgroup's name; None if a bridge did not make it."""
    prefix, _, rest = name.partition("_")
    return Owner.parse(rest.rpartition("_")[0]) if prefix == PREFIX else None


def settings(limits: Limits, controller: str, *, unified: bool) -> list[tuple[str, str, bool]]:
    """Return a controller's settings: file, text, and whether the write must succeed."""
    memory, pids = str(limits.memory_bytes), str(limits.pids + MONITORS)
    if controller == "memory" and unified:
        return [("memory.max", memory, True), ("memory.swap.max", "0", False)]
    if controller == "memory":
        return [
            ("memory.limit_in_bytes", memory, True),
            # Absent where the kernel does not account for swap.
            ("memory.memsw.limit_in_bytes", memory, False),
            ("memory.swappiness", "0", False),
        ]
    if controller == "pids":
        return [("pids.max", pids, True)]
    if limits.cpus is None:
        return []
    quota = str(max(1000, int(limits.cpus * CPU_PERIOD)))
    if unified:
        return [("cpu.max", f"{quota} {CPU_PERIOD}", True)]
    return [("cpu.cfs_period_us", str(CPU_PERIOD), True), ("cpu.cfs_quota_us", quota, True)]


def oom_kills(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return None if found is None else int(found[1])


def scope_command(systemd_run: str, limits: Limits, unit: str) -> list[str]:
    """Return the `systemd-run` words that put a command into a limited scope."""
    command = [
        systemd_run,
        "--user",
        "--scope",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        f"--property=MemoryMax={limits.memory_bytes}",
        "--property=MemorySwapMax=0",
        f"--property=TasksMax={limits.pids + MONITORS}",
    ]
    if limits.cpus is not None:
        command.append(f"--property=CPUQuota={max(1, round(limits.cpus * 100))}%")
    return [*command, "--"]


def missing_controllers(found: Iterable[str], *, root: bool) -> str:
    missing = sorted({*CONTROLLERS} - {*found}, key=CONTROLLERS.index)
    if not missing:
        return ""
    if root:
        return f"this host offers no {' or '.join(missing)} control group that can be written"
    return "no control group is delegated to this user, and there is no user systemd to ask"


@dataclass(frozen=True, kw_only=True)
class SandboxCgroups:
    directories: tuple[Path, ...] = ()
    entries: tuple[Path, ...] = ()  # The files through which a process enters them.
    counter: Path | None = None  # The file with the number of OOM kills.

    def entry_command(self) -> list[str]:
        """Return the words that start a command inside, or fail."""
        return ["/bin/sh", "-c", _ENTER, "sh", *map(str, self.entries), "--"]

    def oom_kills(self) -> int | None:
        if self.counter is None:
            return None
        try:
            return oom_kills(self.counter.read_text(encoding="ascii"))
        except OSError:
            return None

    def remove(self) -> bool:
        """Kill the processes inside and remove the cgroups; return whether they are gone."""
        # A list: remove all, even if the first cannot be removed.
        gone = [_remove(directory) for directory in self.directories]
        return all(gone)


def scope_cgroups(own: str, mounts: str) -> SandboxCgroups | None:
    """Return the cgroup that systemd made for a process, from its /proc/PID/cgroup."""
    for line in own.splitlines():
        if line.startswith("0::"):
            directory = _find_mount(line[3:], mounts, "cgroup2")
            if directory is not None:
                return SandboxCgroups(counter=Path(directory, "memory.events"))
    return None


def find_cgroup_parents(owner: Owner) -> CgroupParents:
    found: CgroupParents = ()
    own, mounts = (Path("/proc/self", name) for name in ("cgroup", "mountinfo"))
    with suppress(OSError):
        for place in candidate_parents(own.read_text(), mounts.read_text(errors="replace")):
            if (usable := _try(place, owner, limited_by(found))) is not None:
                found += (usable,)
    return found


def make_group(parents: CgroupParents, owner: Owner, limits: Limits) -> SandboxCgroups:
    name = group_name(owner, secrets.token_hex(4))
    made: list[Path] = []
    entries: list[Path] = []
    counter: Path | None = None
    try:
        for place in parents:
            if place.controllers == {"cpu"} and limits.cpus is None:
                continue  # entering a group costs milliseconds
            directory = Path(place.directory) / name
            directory.mkdir()
            made.append(directory)
            entries.append(directory / ("cgroup.procs" if place.unified else "tasks"))
            for controller in sorted(place.controllers):
                _limit(directory, limits, controller, unified=place.unified)
                if controller == "memory":
                    file = "memory.events" if place.unified else "memory.oom_control"
                    counter = directory / file
    except OSError as error:
        SandboxCgroups(directories=tuple(made)).remove()
        raise LaunchError(f"Cannot make a control group: {error}.", code="cgroup") from error
    return SandboxCgroups(directories=tuple(made), entries=tuple(entries), counter=counter)


def reap(parents: CgroupParents, judge: Owner) -> int:
    """Remove the cgroups of dead bridges; return the number of sandboxes."""
    gone: set[str] = set()
    for place in parents:
        found: list[Path] = []
        with suppress(OSError):
            found += Path(place.directory).glob(f"{PREFIX}*")
        for directory in found:
            owner = group_owner(directory.name)
            if owner is None or owner == judge or not is_dead(owner, judge=judge):
                continue
            logger.info("removing the control group of a bridge that died: %s", directory)
            if _remove(directory):
                gone.add(directory.name)
    return len(gone)


def _try(place: CgroupParent, owner: Owner, had: frozenset[str]) -> CgroupParent | None:
    """Return a parent with the controllers it adds to `had`; None if it adds none."""
    directory = Path(place.directory) / group_name(owner, "try")
    usable = []
    try:
        directory.mkdir()
        offered = place.controllers
        if place.unified:
            text = (directory / "cgroup.controllers").read_text(encoding="ascii")
            offered = frozenset(CONTROLLERS).intersection(text.split())
        for name in offered - had:
            with suppress(OSError):
                _limit(directory, Limits(cpus=1.0), name, unified=place.unified)
                usable.append(name)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            directory.rmdir()
    if not usable or not os.access(directory.parent / "cgroup.procs", os.W_OK):
        return None
    return replace(place, controllers=frozenset(usable))


def _limit(directory: Path, limits: Limits, controller: str, *, unified: bool) -> None:
    for file, text, required in settings(limits, controller, unified=unified):
        try:
            _write(directory / file, text)
        except OSError:
            if required:
                raise


def _remove(directory: Path) -> bool:
    # Killed processes leave in milliseconds, unless they free a lot of memory.
    deadline = time.monotonic() + 5.0
    while True:
        _kill(directory)
        try:
            directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                logger.warning("the control group %s was not removed: %s", directory, error)
                return False
            time.sleep(0.005)
        else:
            return True


def _kill(directory: Path) -> None:
    with suppress(OSError):
        _write(directory / "cgroup.kill", "1")
        return
    with suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text(encoding="ascii").split():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)


def _write(file: Path, text: str) -> None:
    # Without creating the file.
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


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
