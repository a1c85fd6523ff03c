"""Which bridge process owns a sandbox, and whether that process is alive.

Pids are reused and differ between namespaces and hosts. So an owner is a host, its boot, a pid
namespace, a pid and a start time. If the state of an owner is uncertain, it counts as alive:
removing a live peer's sandbox is worse than leaving a dead one's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.background_instance import process_start
from bridge.errors import SandboxError
from bridge.sandbox.backend import Backend

logger = logging.getLogger(__name__)

LABEL_PREFIX = "org.mcp-code-bridge"
OWNER_LABEL = f"{LABEL_PREFIX}.owner"  # Its process id, for people and filters.
IDENTITY_LABEL = f"{LABEL_PREFIX}.owner-identity"
RUN_LABEL = f"{LABEL_PREFIX}.run"

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Owner:
    """A bridge process, distinct from all others, past and future."""

    pid: int
    start: str  # Its start time, as the kernel prints it.
    namespace: str  # The number of its pid namespace; empty on systems without them.
    boot: str
    host: str  # A digest of the host's name and id, since labels are visible to others.

    def __str__(self) -> str:
        return "_".join((str(self.pid), self.start, self.namespace, self.boot, self.host))

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        pid, *others = text.split("_")
        return cls(int(pid), *others) if pid.isdecimal() and len(others) == 4 else None

    def labels(self) -> dict[str, str]:
        return {OWNER_LABEL: str(self.pid), IDENTITY_LABEL: str(self)}


def current_owner() -> Owner:
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    boot = read_text(BOOT_ID) or _output("sysctl", "-n", "kern.bootsessionuuid")
    host = f"{read_text('/etc/machine-id')}\0{platform.node()}".encode()
    return Owner(
        pid=os.getpid(),
        start=process_start(os.getpid()),
        namespace=namespace,
        boot=boot,
        host=hashlib.sha256(host).hexdigest()[:16],
    )


def is_dead(owner: Owner, *, judge: Owner) -> bool:
    """Return whether `owner` is certainly dead, as seen from the process `judge`.

    Another host, another pid namespace or an unreadable start time make it uncertain.
    """
    if owner.host != judge.host:
        return False
    if owner.boot != judge.boot:
        return True
    if owner.namespace != judge.namespace:
        return False
    if not _exists(owner.pid):
        return True
    return process_start(owner.pid) not in ("", owner.start)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def read_text(path: str) -> str:
    """Return a file's text without outer whitespace; empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def output_of(words: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
    """Return a command's output; None if it fails or takes ten seconds. Blocks."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ or {},
            cwd="/",
            timeout=10.0,
            check=True,
        ).stdout.decode("utf-8", "replace")
    return None


def _output(*words: str) -> str:
    return (output_of(words, os.environ) or "").strip()


async def reap_leftovers(backend: Backend) -> None:
    """Remove the leftovers of dead bridges; log a failure, after which the next bridge tries."""
    try:
        await backend.reap()
    except SandboxError as error:
        logger.warning("%s: sandboxes of dead bridges were not removed: %s", backend.name, error)
