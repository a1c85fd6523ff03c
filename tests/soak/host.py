"""What a soak leaves on the host, seen from outside the bridge.

Owns the samples and what is called flat. Looks at /proc, the control groups and the engines; asks
the bridge nothing.
"""

from __future__ import annotations

import gc
import os
import stat
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import anyio
import docker

from bridge.sandbox.ownership import OWNER_LABEL
from bridge.sandbox.process.cgroups import candidate_parents, group_owner

RSS_SLACK_MIB = 6.0
"""What the least memory seen in the last quarter may be above the least of the first after warming
up. The least, since a leak never comes back, while allocators keep 10 to 20 MiB for minutes."""

MEMORY_RUNS = 90
"""Runs over which memory shows a trend; allocators give it back by and by."""

STATE_SLACK_MIB = 2.0
"""The same for the database and for the other files in the state directory: what is removed leaves
free pages, which are used again."""

THREAD_SLACK = 8
"""Idle worker threads come and go; they are kept for ten seconds, and none holds a descriptor."""

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The host at one moment at which no program runs.

    Attributes:
        processes: Below this one: servers, sandboxes that wait, an engine's service.
        groups: Control groups that are this process's.
        files: Temporary ones, and sockets.
        database_mib: The database's files.
        kept_mib: All else in the state directory, but for the audit log.
        audit_mib: The audit log, which is there to grow.
    """

    runs: int
    rss_mib: float
    descriptors: int
    threads: int
    tasks: int
    processes: int
    groups: int
    files: int
    database_mib: float = 0.0
    kept_mib: float = 0.0
    audit_mib: float = 0.0


CONNECTIONS = 3
"""An engine's connections that may be kept alive at one moment and not at another."""

EQUAL = ("descriptors", "tasks", "processes", "groups", "files")
"""What has to be the same at every sample."""


def sample(runs: int, directory: Path) -> Sample:
    """Look at the host now."""
    gc.collect()
    state = directory / "state"
    database, audit = sum(map(_mib, state.glob("store.db*"))), _mib(state / "audit")
    return Sample(
        runs=runs,
        rss_mib=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB,
        descriptors=_entries("/proc/self/fd"),
        threads=_entries("/proc/self/task"),
        tasks=len(anyio.get_running_tasks()),
        processes=len(descendants()),
        groups=len(own_groups()),
        files=len(files(directory)),
        database_mib=database,
        kept_mib=_mib(state) - database - audit,
        audit_mib=audit,
    )


def _mib(place: Path) -> float:
    """Return the size of a file, or of all files in a directory."""
    found = 0
    for path in (place, *place.rglob("*")):
        # It may have gone meanwhile, or not be there yet.
        with suppress(OSError):
            status = path.lstat()
            found += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return found / 2**20


def files(directory: Path) -> list[str]:
    """Return what the bridge has in its temporary and its run-time directory.

    Not the profiles for engines: they are named after what they hold, and used again.
    """
    candidate_parents = (directory / "tmp", directory / "run")
    found = [path for place in candidate_parents for path in place.rglob("*") if not path.is_dir()]
    return [str(path) for path in found if not path.match("seccomp-*.json")]


def _entries(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())


def descendants() -> list[int]:
    """Return the processes below this one, dead ones that no one has reaped included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields_[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def own_groups() -> list[str]:
    """Return the control groups that this process has made."""
    own = Path("/proc/self/cgroup").read_text()
    mounts = Path("/proc/self/mountinfo").read_text()
    found: list[str] = []
    for place in candidate_parents(own, mounts):
        for entry in Path(place.directory).iterdir():
            owner = group_owner(entry.name)
            if owner is not None and owner.pid == os.getpid():
                found.append(str(entry))
    return found


def own_containers(engine: str) -> list[str]:
    """Return the containers on an engine that carry this process's label."""
    label = f"{OWNER_LABEL}={os.getpid()}"
    if engine == "podman":
        command = ["podman", "ps", "--all", "--quiet", "--filter", f"label={label}"]
        asked = subprocess.run(command, check=True, capture_output=True, text=True)
        return asked.stdout.split()
    if engine != "docker":
        return []
    url = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    client = docker.APIClient(base_url=url, version="1.41", timeout=60)
    try:
        found = client.containers(all=True, filters={"label": label})
        return [str(container["Id"]) for container in found]
    finally:
        client.close()


def at_rest(now: Sample, first: Sample, connections: int) -> bool:
    """Whether what the last runs left has been taken down, and the next sandbox is up."""
    others = all(getattr(now, name) == getattr(first, name) for name in EQUAL[1:])
    return others and now.descriptors <= first.descriptors + connections


def trends(samples: Sequence[Sample], connections: int = 0) -> list[str]:
    """Say what is not flat. The first sample, taken after warming up, is the measure.

    Args:
        connections: Descriptors that may come and go.
    """
    complaints = []
    first, last = _quarters(samples)
    grown = min(s.rss_mib for s in last) - min(s.rss_mib for s in first)
    if grown > RSS_SLACK_MIB and samples[-1].runs - samples[0].runs >= MEMORY_RUNS:
        complaints.append(f"memory grew by {grown:.1f} MiB")
    for name in ("database_mib", "kept_mib"):
        grown = min(getattr(s, name) for s in last) - min(getattr(s, name) for s in first)
        if grown > STATE_SLACK_MIB:
            complaints.append(f"{name} grew by {grown:.1f}")
    for name in EQUAL:
        seen = [int(getattr(s, name)) for s in samples]
        # A single busy moment is none of ours; what stays is.
        most = seen[0] + (connections if name == "descriptors" else 0)
        if seen[-1] > most or statistics.median(seen) > most:
            complaints.append(f"{name} went from {seen[0]} to {seen[-1]}")
    if samples[-1].threads > samples[0].threads + THREAD_SLACK:
        complaints.append(f"threads went from {samples[0].threads} to {samples[-1].threads}")
    return complaints


def growth(samples: Sequence[Sample]) -> str:
    """Return what grew for each thousand runs, from the first quarter to the last."""
    first, last = _quarters(samples)
    runs = last[0].runs - first[0].runs
    if not runs:
        return ""
    names = ("rss_mib", "database_mib", "kept_mib", "audit_mib")
    grown = {n: min(getattr(s, n) for s in last) - min(getattr(s, n) for s in first) for n in names}
    parts = [f"{name} {value / runs * 1000:+.3f}" for name, value in grown.items()]
    return f"for each 1,000 runs: {', '.join(parts)}"


def _quarters(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    size = max(1, len(samples) // 4)
    return samples[:size], samples[-size:]


def table(samples: Sequence[Sample]) -> str:
    """Return the samples for a person."""
    names = [field.name for field in fields(Sample)]
    lines = ["  ".join(f"{name:>12}" for name in names)]
    for one in samples:
        values = [getattr(one, name) for name in names]
        lines.append(
            "  ".join(f"{v:12.1f}" if isinstance(v, float) else f"{v:12d}" for v in values)
        )
    return "\n".join(lines)
