"""What this machine offers: its kernel's settings and features, read once per backend.

Owns the reading; what follows from it is decided in `command`, `groups` and `faults`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bridge.sandbox.process.command import MASKED
from bridge.sandbox.process.faults import KernelSettings

_PER_NAMESPACE_SINCE = (5, 14)
"""Since then the kernel counts a user's processes in each user namespace by itself."""

SETPRIV_SECONDS = 10.0
"""For it to be tried out: a millisecond, more from a cold disk."""

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def find_command(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of a command, by the bridge's own search path."""
    found = shutil.which(name, path=environ.get("PATH") or _SYSTEM_PATH)
    return os.path.realpath(found) if found is not None else None


def find_setpriv(uid: int, environ: Mapping[str, str]) -> str:
    """Return the command that becomes a user of no groups, if it does; else nothing. Blocks."""
    found = find_command("setpriv", environ)
    if found is None:
        return ""
    words = [found, *becoming(uid, uid), found, "--dump"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={},
            cwd="/",
            timeout=SETPRIV_SECONDS,
            check=True,
        ).stdout
        if shows_user(said.decode("ascii", "replace"), uid):
            return found
    return ""


def becoming(uid: int, gid: int) -> tuple[str, ...]:
    """Return the words between `setpriv` and the command that it becomes."""
    return (f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--")


def shows_user(dump: str, uid: int) -> bool:
    """Whether `setpriv --dump` told of that user and group and no others."""
    wanted = (f"uid: {uid}", f"euid: {uid}", f"gid: {uid}", f"egid: {uid}")
    return {*wanted, "Supplementary groups: [none]"} <= set(dump.splitlines())


def kernel_settings(bwrap: str | None) -> KernelSettings:
    """Read what the kernel says of user namespaces."""
    return KernelSettings(
        userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        apparmor_restricts=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        in_container=in_container(),
        setuid=bwrap is not None and _is_setuid(Path(bwrap)),
    )


def in_container() -> bool:
    """Whether this process seems to be in a container."""
    if Path("/run/.containerenv").exists() or Path("/.dockerenv").exists():
        return True
    try:
        return b"container=" in Path("/proc/1/environ").read_bytes()
    except OSError:
        return False


def is_mapped(uid: int, uid_map: str) -> bool:
    """Whether a user id exists here, by the text of /proc/self/uid_map.

    Root of a user namespace with one id in it is nobody special outside, and can become nobody
    else.
    """
    for line in uid_map.splitlines():
        words = line.split()
        if len(words) == 3 and int(words[0]) <= uid < int(words[0]) + int(words[2]):
            return True
    return False


def masked_paths() -> tuple[tuple[str, bool], ...]:
    """Return the paths of /proc to cover that this host has, and which are directories."""
    return tuple((path, Path(path).is_dir()) for path in MASKED if Path(path).exists())


def counts_processes_per_namespace(release: str) -> bool:
    """Whether a kernel of that release bounds a user's processes in each namespace by itself."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= _PER_NAMESPACE_SINCE


def usable_cpus() -> int:
    """Return how many CPUs programs may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _is_setuid(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_ISUID)
    except OSError:
        return False


def text(path: str) -> str:
    """Return a file's text; empty where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
