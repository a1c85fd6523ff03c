"""The sandbox's Python, as its guest reports it; packages are resolved for it. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bridge.errors import PackageUnavailableError
from bridge.guest.protocol.distributions import normalize_name

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_MACHINES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}

_CPYTHON = sys.implementation.name == "cpython"

# The facts that a guest must report. A guest may lie.
_FACTS = {
    "python": re.compile(r"3\.\d{1,2}\.\d{1,3}"),
    "implementation": re.compile(r"[a-z]{1,20}"),
    "machine": re.compile(r"[A-Za-z0-9_-]{1,20}"),
    "libc": re.compile(r"(glibc \d\.\d{1,3}|musl|)"),
}

# Minor versions of glibc 2 that uv knows.
_GLIBC = (40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17)


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A package of the sandbox's image, and the names of its dependencies."""

    name: str
    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackageTarget:
    version: str  # "3.11.2".
    implementation: str  # "cpython", "pypy", ...
    abi: str  # The ABI tag ("cp313", "cp313t"); empty if unknown.
    machine: str
    libc: str  # "glibc 2.36" or "musl"; empty if unknown.

    @property
    def uv_platform(self) -> str:
        """uv's name of the machine and C library; an error if uv cannot resolve for them."""
        free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        own = f"cp{''.join(self.version.split('.')[:2])}{free}" if _CPYTHON else ""
        if self.abi != own or not self.libc:
            # uv takes everything but version and system from the bridge's Python.
            message = f"The sandbox has {self}; no packages can be found for that kind of Python."
            remedy = "Set MCP_BRIDGE_IMAGE to an image with CPython, such as python:3.13-slim."
            raise PackageUnavailableError(message, remedy=remedy)
        if self.libc == "musl":
            return f"{self.machine}-unknown-linux-musl"
        minor = int(self.libc.rpartition(".")[2])
        return f"{self.machine}-manylinux_2_{next((n for n in _GLIBC if n <= minor), _GLIBC[-1])}"

    @property
    def digest(self) -> str:
        """A digest; equal targets use the same wheels."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.implementation} {self.version} on {self.machine} ({self.libc or 'no libc'})"


def installed_in(listed: object) -> tuple[Installed, ...]:
    """Return the packages of a guest's list that have valid names and versions."""
    from packaging.version import InvalidVersion, Version

    installed = []
    for entry in listed if isinstance(listed, list) else []:
        match entry:
            case [str(name), str(version), [*requires]] if _NAME.fullmatch(name):
                with suppress(InvalidVersion):
                    # No index has a distribution's local version, after "+".
                    public = Version(version).public
                    names = (normalize_name(each) for each in requires if isinstance(each, str))
                    installed.append(
                        Installed(name=normalize_name(name), version=public, requires=(*names,))
                    )
    return tuple(sorted(installed[:2000], key=lambda one: one.name))


def target_of(facts: Mapping[str, Any]) -> PackageTarget:
    """Return the Python that a guest's facts describe; an error if they are invalid."""
    texts = {name: facts.get(name, "") for name in _FACTS}
    if not all(
        isinstance(text, str) and _FACTS[name].fullmatch(text) for name, text in texts.items()
    ):
        message = "The sandbox does not report a valid Python, so no packages can be found for it."
        raise PackageUnavailableError(message)
    platform = facts.get("platform")
    if platform != "linux":
        message = f"Packages need a sandbox with Linux; this one has {platform!r:.30}."
        remedy = "Set MCP_BRIDGE_RUNTIME to podman, docker or bubblewrap."
        raise PackageUnavailableError(message, remedy=remedy)
    version, implementation, machine, libc = texts.values()
    major, minor = version.split(".")[:2]
    free = "t" if facts.get("free_threaded") is True else ""
    machine = _MACHINES.get(machine.lower(), machine)
    return PackageTarget(
        version=version,
        implementation=implementation,
        abi=f"cp{major}{minor}{free}" if implementation == "cpython" else "",
        machine=machine,
        libc=libc,
    )
