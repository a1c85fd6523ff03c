"""Where control groups for sandboxes can be made, and how one is named and limited. Pure.

Owns the reading of /proc/self/cgroup and /proc/self/mountinfo, for both versions, and the names
that say whose a group is. Making and removing is `group`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from bridge.model import Limits
from bridge.sandbox.reaper import Owner

CONTROLLERS = ("memory", "pids", "cpu")

PREFIX = "mcp-code-bridge"

CPU_PERIOD = 100_000
"""Microseconds; the kernel's own default."""

MONITORS = 1
"""Processes in a group that are not the program's: bubblewrap itself, waiting for the end."""

SCOPE_SECONDS = 10.0
"""For systemd to try out a scope."""

_NAMESPACE = re.compile(r"^pid:\[(\d+)\]$")
_SEPARATOR = "_"
_PARTS = 7


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory in which groups may be made.

    Attributes:
        directory: The bridge's own group, or one above it.
        controllers: Of those that matter here, what it controls; on version 2 it is found out
            from its files.
        unified: Whether it is version 2.
        visited: Whether a thread of the bridge can go into its groups and come back.
    """

    directory: str
    controllers: frozenset[str]
    unified: bool
    visited: bool = False


def places(own: str, mounts: str) -> tuple[Place, ...]:
    """Return where to try, best first.

    Args:
        own: /proc/self/cgroup.
        mounts: /proc/self/mountinfo.
    """
    found: list[Place] = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            found += _unified(path, mounts)
            continue
        wanted = frozenset(names.split(",")) & frozenset(CONTROLLERS)
        directory = _mounted(path, mounts, "cgroup", wanted) if wanted else None
        if directory is not None:
            found.append(Place(directory=directory, controllers=wanted, unified=False))
    # Version 1 first: where both are mounted, it has the controllers.
    return tuple(sorted(found, key=lambda place: place.unified))


def _unified(path: str, mounts: str) -> list[Place]:
    directory = _mounted(path, mounts, "cgroup2", frozenset())
    if directory is None:
        return []
    root = _mounted("/", mounts, "cgroup2", frozenset()) or directory
    levels = [directory]
    while levels[-1] != root and levels[-1] != "/":
        levels.append(str(PurePosixPath(levels[-1]).parent))
    # A group that holds processes, like the bridge's own, can have no limited groups below it, so
    # it is usually the one above that works.
    return [Place(directory=level, controllers=frozenset(), unified=True) for level in levels]


def _mounted(path: str, mounts: str, kind: str, controllers: frozenset[str]) -> str | None:
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
    """Name a group after whose it is."""
    namespace = _NAMESPACE.match(owner.namespace)
    parts = (
        PREFIX,
        str(owner.pid),
        owner.start,
        namespace[1] if namespace else "",
        owner.boot,
        owner.host,
        nonce,
    )
    return _SEPARATOR.join(parts)


def group_owner(name: str) -> Owner | None:
    """Read back whose a group is; None when it is none of ours."""
    parts = name.split(_SEPARATOR)
    if len(parts) != _PARTS or parts[0] != PREFIX or not parts[1].isdecimal():
        return None
    namespace = f"pid:[{parts[3]}]" if parts[3] else ""
    return Owner(
        pid=int(parts[1]), start=parts[2], namespace=namespace, boot=parts[4], host=parts[5]
    )


def settings(limits: Limits, controller: str, *, unified: bool) -> list[tuple[str, str, bool]]:
    """Return what to write: file, text, and whether it must succeed."""
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
    """Read the count from `memory.events` or `memory.oom_control`; None if it is not there."""
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdecimal():
            return int(count)
    return None


def scope_command(systemd_run: str, limits: Limits, unit: str) -> list[str]:
    """Make the words that have the user's systemd limit the command after them."""
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


def scope_group(own: str, mounts: str) -> str | None:
    """Return the version 2 directory of a process, given its /proc/<pid>/cgroup."""
    for line in own.splitlines():
        if line.startswith("0::"):
            return _mounted(line[3:], mounts, "cgroup2", frozenset())
    return None


def lacking(found: Sequence[str], *, root: bool) -> str:
    """Say why not every controller can be had; empty when nothing is missing."""
    missing = [name for name in CONTROLLERS if name not in found]
    if not missing:
        return ""
    if root:
        return f"this host offers no {' or '.join(missing)} control group that can be written"
    return "no control group is delegated to this user, and there is no user systemd to ask"
