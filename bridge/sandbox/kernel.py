"""Whether a sandbox has a kernel of its own, as gVisor and virtual machines give it.

Owns which OCI runtimes are known for that, and the comparison of what a guest sees with the kernel
under its engine. Being told so by name is no proof: an engine's configuration may let "runsc" start
anything. A kernel is told apart by what it drew at random when it booted; gVisor shows no such
number, so after it by its build and its release.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.model import HostKernel

OWN_KERNEL = "own-kernel"
"""The layer's name."""

_GVISOR = re.compile(r"runsc|gvisor", re.IGNORECASE)
_MACHINES = re.compile(r"kata|krun|crun-vm|firecracker|cloud-hypervisor", re.IGNORECASE)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def is_gvisor(runtime: str) -> bool:
    """Tell whether an OCI runtime of that name is gVisor, whatever flavour."""
    return _GVISOR.search(runtime) is not None


def brings_own_kernel(runtime: str) -> bool:
    """Tell whether an OCI runtime of that name promises a kernel of its own."""
    return is_gvisor(runtime) or _MACHINES.search(runtime) is not None


def own_kernel(facts: Mapping[str, Any], host: HostKernel) -> bool | None:
    """Tell whether a guest sees another kernel than the host's; None when nothing tells.

    Args:
        facts: What the guest read.
        host: The kernel under the engine.
    """
    for key, theirs in (
        ("boot_id", host.boot_id),
        ("kernel_version", host.version),
        ("kernel", host.release),
    ):
        seen = facts.get(key)
        if seen and theirs:
            return bool(seen != theirs)
    return None


def this_kernel() -> HostKernel:
    """Read this machine's own kernel."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    found = os.uname()
    return HostKernel(release=found.release, version=found.version, boot_id=boot)
