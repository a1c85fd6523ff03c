"""The Python that packages are for: the sandbox's, as its guest told. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags

from bridge.errors import PackageUnavailableError

_MACHINES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}

_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
"""Minor versions of glibc 2 from which on there are platform tags; 17 elsewhere."""

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

_MUSL = (2, 1, 0)
"""Minor versions of musl 1. Which one an image has nobody tells; all with a Python of ours have the
last, and it takes what was made for those before."""

_MAX_MINOR = 200
"""No glibc has been so young; more is a guest's invention."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One Python on one kind of machine.

    Attributes:
        version: "3.11.2".
        implementation: "cpython", "pypy", ...
        abi: Of compiled modules, as tags have it ("cp313", "cp313t"); empty for none known.
        libc: "glibc 2.36" or "musl"; empty where nothing tells.
    """

    version: str
    implementation: str
    abi: str
    machine: str
    libc: str

    @property
    def short(self) -> tuple[int, int]:
        """Its first two numbers."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def digest(self) -> str:
        """Equal for those that take the same wheels."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.implementation} {self.version} on {self.machine} ({self.libc or 'no libc'})"


def target_of(facts: Mapping[str, Any]) -> Target:
    """Return the Python that a guest's facts tell of.

    Raises:
        PackageUnavailableError: They tell too little, or what cannot be.
    """
    version, platform = facts.get("python"), facts.get("platform")
    implementation, machine = facts.get("implementation"), facts.get("machine")
    libc = facts.get("libc", "")
    if (
        not isinstance(version, str)
        or not re.fullmatch(r"3\.\d{1,2}\.\d{1,3}", version)
        or not isinstance(implementation, str)
        or not re.fullmatch(r"[a-z]{1,20}", implementation)
        or not isinstance(machine, str)
        or not re.fullmatch(r"[A-Za-z0-9_-]{1,20}", machine)
        or not isinstance(libc, str)
        or not re.fullmatch(r"(glibc \d\.\d{1,3}|musl|)", libc)
    ):
        message = "The sandbox does not tell which Python it has, so nothing is found for it."
        raise PackageUnavailableError(message)
    if platform != "linux":
        message = f"Packages are for sandboxes with Linux inside; this one has {platform!r:.30}."
        remedy = "Set MCP_BRIDGE_RUNTIME to podman, docker or bubblewrap."
        raise PackageUnavailableError(message, remedy=remedy)
    major, minor = version.split(".")[:2]
    free = "t" if facts.get("free_threaded") is True else ""
    machine = _MACHINES.get(machine.lower(), machine)
    return Target(
        version=version,
        implementation=implementation,
        abi=f"cp{major}{minor}{free}" if implementation == "cpython" else "",
        machine=machine,
        libc=libc,
    )


def platforms(target: Target) -> tuple[str, ...]:
    """Return the platform tags of wheels with native code that it takes, the best first."""
    machine = target.machine.replace("-", "_")
    if target.libc == "musl":
        return tuple(f"musllinux_1_{minor}_{machine}" for minor in _MUSL)
    found = re.fullmatch(r"glibc 2\.(\d+)", target.libc)
    if found is None:
        return ()
    oldest = _OLDEST_GLIBC.get(machine, 17)
    tags = []
    for minor in range(min(int(found[1]), _MAX_MINOR), oldest - 1, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY and (minor == 17 or machine in _OLDEST_GLIBC):
            tags.append(f"{_LEGACY[minor]}_{machine}")
    return (*tags, f"linux_{machine}")


def tags(target: Target) -> tuple[Tag, ...]:
    """Return the tags of all wheels that it takes, the best first."""
    found = platforms(target)
    own: list[Tag] = []
    interpreter = None
    if target.abi:
        interpreter = f"cp{target.short[0]}{target.short[1]}"
        own = list(cpython_tags(target.short, abis=[target.abi], platforms=found))
    return (*own, *compatible_tags(target.short, interpreter, found))


def environment(target: Target) -> dict[str, str]:
    """Return what markers of requirements are about, as that Python has it."""
    name = {"cpython": "CPython", "pypy": "PyPy"}.get(target.implementation, target.implementation)
    return {
        "implementation_name": target.implementation,
        "implementation_version": target.version,
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": name,
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.version,
        "python_version": ".".join(map(str, target.short)),
        "sys_platform": "linux",
    }
