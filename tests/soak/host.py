"""Samples of the host during a soak, from /proc, the control groups and the engines."""

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
"""Growth of the least memory from the first quarter after warming up to the last quarter.

A leak raises the minimum permanently, while allocators keep 10 to 20 MiB for minutes.
"""

MEMORY_RUNS = 90
"""Runs over which memory shows a trend."""

STATE_SLACK_MIB = 2.0
"""Growth of the database and of other state files: removed rows leave free pages."""

THREAD_SLACK = 8
"""Idle worker threads, which are kept for ten seconds."""

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The host at one moment at which no program runs."""

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
"""Kept-alive connections to an engine, whose number varies."""

EQUAL = ("descriptors", "tasks", "processes", "groups", "files")
"""Fields that are equal in every sample."""


def sample(runs: int, directory: Path) -> Sample:
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


def _mib(root: Path) -> float:
    total = 0
    for path in (root, *root.rglob("*")):
        with suppress(OSError):  # It may be gone, or not exist yet.
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total / 2**20


def files(directory: Path) -> list[str]:
    """Return the temporary and run-time files, without the engines' profiles, which are reused."""
    paths = [path for name in ("tmp", "run") for path in (directory / name).rglob("*")]
    return [str(p) for p in paths if not (p.is_dir() or p.match("seccomp-*.json"))]


def _entries(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())


def descendants() -> list[int]:
    """Return the processes below this one, zombies included."""
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
    """Return whether the last runs' remains are removed, and the next sandbox is running."""
    others = all(getattr(now, name) == getattr(first, name) for name in EQUAL[1:])
    return others and now.descriptors <= first.descriptors + connections


def trends(samples: Sequence[Sample], connections: int) -> list[str]:
    """Return a complaint for each field that grew; up to `connections` descriptors may vary."""
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
        # A single busy moment does not count.
        most = seen[0] + (connections if name == "descriptors" else 0)
        if seen[-1] > most or statistics.median(seen) > most:
            complaints.append(f"{name} went from {seen[0]} to {seen[-1]}")
    if samples[-1].threads > samples[0].threads + THREAD_SLACK:
        complaints.append(f"threads went from {samples[0].threads} to {samples[-1].threads}")
    return complaints


def growth(samples: Sequence[Sample]) -> str:
    """Return the growth for each thousand runs, from the first quarter to the last."""
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
    names = [field.name for field in fields(Sample)]
    rows = [[f"{float(getattr(one, name)):12.1f}" for name in names] for one in samples]
    return "\n".join("  ".join(row) for row in [[f"{name:>12}" for name in names], *rows])
