"""Whose a sandbox is, and whether that bridge still lives.

Owns the identity a bridge leaves on what it creates (labels on containers, a file beside a private
engine socket) and the decision whether that may be removed. Removing is left to the backends.

A process id alone names nobody: ids are reused, differ between pid namespaces, and mean nothing on
another host that shares an engine. So an owner is a host, a boot of it, a pid namespace, a pid and
that process's start time; and whatever cannot be judged from here is left alone, because removing
a live peer's sandbox is worse than leaving a dead one's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import SandboxError
from bridge.sandbox.backend import Backend

logger = logging.getLogger(__name__)

LABEL_PREFIX = "org.mcp-code-bridge"
OWNER_LABEL = f"{LABEL_PREFIX}.owner"
START_LABEL = f"{LABEL_PREFIX}.owner-start"
NAMESPACE_LABEL = f"{LABEL_PREFIX}.owner-namespace"
BOOT_LABEL = f"{LABEL_PREFIX}.boot"
HOST_LABEL = f"{LABEL_PREFIX}.host"
RUN_LABEL = f"{LABEL_PREFIX}.run"

_START_FIELD = 22
"""`starttime` in /proc/<pid>/stat, counted from 1 as proc(5) does."""

_PS_SECONDS = 5.0
"""`ps` and `sysctl` answer at once; more than this means a machine in trouble."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """One bridge process, told apart from every other that was or will be.

    Attributes:
        pid: Its process id, in `namespace`.
        start: When it started, in the kernel's own words.
        namespace: Its pid namespace; empty where there are none.
        boot: Which boot of the host.
        host: Which host; a digest, so that labels carry no host name.
    """

    pid: int
    start: str
    namespace: str
    boot: str
    host: str

    def labels(self) -> dict[str, str]:
        """Return what is written on what this owner creates."""
        return {
            OWNER_LABEL: str(self.pid),
            START_LABEL: self.start,
            NAMESPACE_LABEL: self.namespace,
            BOOT_LABEL: self.boot,
            HOST_LABEL: self.host,
        }

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner | None:
        """Read an owner back; None when the labels are not a bridge's, or broken."""
        try:
            return cls(
                pid=int(labels[OWNER_LABEL]),
                start=labels[START_LABEL],
                namespace=labels[NAMESPACE_LABEL],
                boot=labels[BOOT_LABEL],
                host=labels[HOST_LABEL],
            )
        except (KeyError, ValueError):
            return None


def current_owner() -> Owner:
    """Identify this process."""
    return Owner(
        pid=os.getpid(),
        start=process_start(os.getpid()) or "",
        namespace=_pid_namespace(),
        boot=_boot_id(),
        host=_host_id(),
    )


def is_dead(owner: Owner, *, judge: Owner) -> bool:
    """Decide whether `owner` is certainly gone, seen from the process `judge`.

    False whenever that cannot be told from here: another host, another pid namespace, or a
    process whose start time this user may not read.
    """
    if owner.host != judge.host:
        return False
    if owner.boot != judge.boot:
        return True
    if owner.namespace != judge.namespace:
        return False
    if not _exists(owner.pid):
        return True
    start = process_start(owner.pid)
    return start is not None and start != owner.start


def process_start(pid: int) -> str | None:
    """Return when a process started, or None if that cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _run(("ps", "-o", "lstart=", "-p", str(pid))) if _has_no_proc() else None
    # The second field is the command's name, in brackets, and may itself hold spaces and brackets.
    after_name = stat.rpartition(")")[2].split()
    return after_name[_START_FIELD - 3] if len(after_name) > _START_FIELD - 3 else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _has_no_proc() -> bool:
    return platform.system() != "Linux"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _run(("sysctl", "-n", "kern.bootsessionuuid")) or ""


def _host_id() -> str:
    try:
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        machine = ""
    return hashlib.sha256(f"{machine}\0{platform.node()}".encode()).hexdigest()[:16]


def _run(argv: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PS_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


async def tidy_up(backend: Backend) -> None:
    """Have a backend remove what dead bridges left, as far as it can.

    An engine with one broken container may refuse to list any. That is no reason to run nothing: a
    sandbox of one's own needs none of it, and the next bridge tries again.
    """
    try:
        await backend.reap()
    except SandboxError as error:
        logger.warning("%s: what dead bridges left was not removed: %s", backend.name, error)
