"""macOS's Seatbelt. Untested on macOS: tests use a stand-in that starts its command.

Enforces: a profile that refuses everything except what an interpreter needs to start. Paths are
parameters and never text, so a path cannot add rules. System services cannot be looked up, since
they lead to the keychain, the pasteboard and the network.

Does not: limit memory (macOS has no limit for a process group) or end every process for certain
(see `monitor`).
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from bridge.errors import SandboxError
from bridge.model import Isolation, Json
from bridge.sandbox.backend import LaunchSpec, LayerReport
from bridge.sandbox.process import command
from bridge.sandbox.process.base import WEAKER_DISK, Findings, RunDirectory, UnnamespacedBackend

SANDBOX_EXEC = "/usr/bin/sandbox-exec"

_SYSTEM = (
    "/usr/lib", "/System/Library/Frameworks", "/System/Library/PrivateFrameworks",
    "/System/Volumes/Preboot/Cryptexes/OS", "/usr/share/zoneinfo", "/private/var/db/timezone",
)  # fmt: skip
"""Public system paths that the dynamic loader and the C library read."""

_READ_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_WRITE_DEVICES = ("/dev/null", "/dev/zero")

_LINKS = ("/", "/tmp", "/var", "/etc")
"""Links with readable metadata, so that paths through them resolve."""

_SYSCTLS = (
    "hw.activecpu", "hw.logicalcpu", "hw.logicalcpu_max", "hw.memsize", "hw.ncpu", "hw.pagesize",
    "kern.argmax", "kern.osrelease", "kern.ostype", "kern.osversion", "kern.version",
)  # fmt: skip


def profile(readable: int) -> str:
    reads = "\n".join(f'  (subpath (param "READ_{n}"))' for n in range(readable))
    lines = [
        "(version 1)",
        "(deny default)",
        "(deny network*)",
        "(deny mach-lookup)",
        "(allow process-fork)",
        '(allow process-exec (literal (param "EXECUTABLE")))',
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        f"(allow sysctl-read\n{_clauses('sysctl-name', _SYSCTLS)})",
        f"(allow file-read-metadata\n{_clauses('literal', _LINKS)})",
        f"(allow file-read* file-map-executable\n{_clauses('subpath', _SYSTEM)})",
        f"(allow file-read*\n{_clauses('literal', _READ_DEVICES)})",
        f"(allow file-write-data\n{_clauses('literal', _WRITE_DEVICES)})",
        '(allow file-read* file-map-executable (literal (param "EXECUTABLE")))',
    ]
    if readable:
        lines.append(f"(allow file-read* file-map-executable\n{reads})")
    lines += [
        '(allow file-read* file-write* (subpath (param "WRITABLE")))',
        # No devices, not even there.
        '(deny file-write-create (require-all (subpath (param "WRITABLE"))',
        "  (require-any (vnode-type BLOCK-DEVICE) (vnode-type CHARACTER-DEVICE))))",
        # A file marked as immutable could not be removed after the run.
        "(deny file-write-flags)",
        '(deny process-exec (subpath (param "WRITABLE")))',
    ]
    return "\n".join(lines) + "\n"


def _clauses(kind: str, values: Sequence[str]) -> str:
    return "\n".join(f'  ({kind} "{value}")' for value in values)


def arguments(
    executable: str,
    readable: Iterable[str],
    writable: str,
    command: Sequence[str],
    *,
    sandbox_exec: str = SANDBOX_EXEC,
    resolve: Callable[[str], str] = os.path.realpath,
) -> list[str]:
    """Return the command line that runs `command` inside.

    Seatbelt compares resolved paths: a rule for /tmp never matches, since /tmp is /private/tmp.
    """
    paths = (executable, writable, *readable)
    for path in paths:
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{path!r} is no usable path")
    resolved = map(resolve, paths)
    given = {"EXECUTABLE": next(resolved), "WRITABLE": next(resolved)}
    given |= {f"READ_{n}": path for n, path in enumerate(dict.fromkeys(resolved))}
    made = [sandbox_exec, "-p", profile(len(given) - 2)]
    for name, value in given.items():
        made += ["-D", f"{name}={value}"]
    return [*made, *command]


NAME = "seatbelt"
SYSTEM = "darwin"

NO_MEMORY = (
    "memory limit: not in force; macOS bounds the memory of no group of processes and ignores that "
    "of one"
)

_PROCESSES = (
    "processes: no namespace of their own; what detaches itself twice can outlive the run, "
    "confined, until its CPU time is used up"
)

_LIMITS = frozenset(("RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC"))
"""The resource limits that macOS has and applies."""


class SeatbeltBackend(UnnamespacedBackend):
    name = title = NAME
    linux = False
    sandbox_exec = SANDBOX_EXEC
    system: str = sys.platform

    def _look(self) -> Findings:
        if self.system != SYSTEM:
            raise SandboxError("Only macOS has Seatbelt.", code="wrong_system")
        if not os.access(self.sandbox_exec, os.X_OK):
            raise SandboxError(
                f"{self.sandbox_exec} is not there.",
                remedy="It is part of macOS; use podman or docker.",
                code="engine_not_found",
            )
        uid = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
        return self._look_at_host(uid, confiner=self.sandbox_exec)

    def _steps(
        self, found: Findings, directory: RunDirectory, spec: LaunchSpec
    ) -> Mapping[str, Json]:
        limits = command.rlimits(spec.limits, found.around)
        # Capabilities and "no_new_privs" are Linux's; the profile allows no other executable.
        return {"privileges": False, "rlimits": [each for each in limits if each[0] in _LIMITS]}

    def _isolation(self, found: Findings, spec: LaunchSpec) -> Isolation:
        return isolation(spec)

    def _confine(self, found: Findings, directory: RunDirectory, words: list[str]) -> list[str]:
        return arguments(
            found.interpreter.executable,
            [bind.source for bind in found.interpreter.binds],
            str(directory.path),
            words,
            sandbox_exec=found.confiner,
        )

    def _details(self, found: Findings) -> Mapping[str, str]:
        return {"sandbox-exec": found.confiner, "directories": str(found.base)}


def isolation(spec: LaunchSpec) -> Isolation:
    report = LayerReport(["seatbelt", "network-calls-refused", "unprivileged-user", "ulimits"])
    report.weaker += [
        "seatbelt: this backend has not been tested on macOS",
        NO_MEMORY,
        _PROCESSES,
        "pids limit: best effort, counted per user; macOS has no control groups",
        WEAKER_DISK,
    ]
    if spec.limits.cpus is not None:
        cpu = "cpu limit: best effort, CPU seconds only; macOS has no control groups"
        report.weaker.append(cpu)
    return report.isolation(NAME)
