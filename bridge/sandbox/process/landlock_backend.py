"""The weaker tier: programs next to the bridge, confined by Landlock and seccomp.

Used only if it is named. Each result contains `TIER`, which describes the weakness.

Enforces: only named paths of the host open. Landlock has no exceptions below a rule: if packages
lie within the standard library, a rule names each other entry. Sockets cannot be made or connected,
except connected pairs, which event loops need. Calls that change files without opening them, or
another process of the user without a signal, are refused.

Verified: `tests/sandbox/process/test_landlock_tier.py`.
"""

from __future__ import annotations

import base64
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from bridge.errors import SandboxError
from bridge.model import Isolation, Json
from bridge.sandbox.backend import LaunchSpec, LayerReport
from bridge.sandbox.process import host, landlock, libseccomp
from bridge.sandbox.process.base import WEAKER_DISK, Findings, RunDirectory, UnnamespacedBackend
from bridge.sandbox.process.command import ProcessSurroundings, add_limits, device_rules, rlimits
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.process.landlock import LandlockRule
from bridge.sandbox.syscalls import SyscallRefusal, refuse_datagrams, refuse_unless

NAME = "landlock"

TIER = (
    "weaker tier: Landlock and seccomp without namespaces; a program can see the names, sizes and "
    "owners of the host's files, which process ids exist, the host's name, mounts, network "
    "addresses and connections, and the load on it"
)

NO_SOCKETS: tuple[SyscallRefusal, ...] = (
    SyscallRefusal("socket", error=errno.EAFNOSUPPORT),
    SyscallRefusal("connect", error=errno.EACCES),
    # Datagram sockets could send to any address.
    *refuse_datagrams("socketpair"),
)
"""Refused only here, because the network is the host's."""

_WITHOUT_OPENING = """
chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr futimesat
lchown lremovexattr lsetxattr removexattr setxattr utime utimensat utimes
"""
"""Landlock covers none of these calls, and a program may run as the owner of the bridge's files.
Those on descriptors too: a program may open the user's files for reading, such as libraries."""

_OF_ANOTHER_PROCESS = "prlimit64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler"

_SOCKET_REQUESTS = 0x8900

UNGUARDED: tuple[SyscallRefusal, ...] = (
    *map(SyscallRefusal, _WITHOUT_OPENING.split()),
    # The argument that names the process; 0 is the caller.
    *(refuse_unless(call, 0, 0) for call in _OF_ANOTHER_PROCESS.split()),
    # Its first argument 0 is a process, and not a group or a user; the second names it.
    refuse_unless("setpriority", 0, 0),
    refuse_unless("setpriority", 1, 0),
    # Any socket, even a local one, reveals the addresses of the host's interfaces.
    SyscallRefusal("ioctl", 1, _SOCKET_REQUESTS, 0xFFFFFF00),
)
"""Refused because no Landlock version covers it."""

_O_TRUNC, _O_ACCMODE = 0o1000, 0o3

NO_TRUNCATION: tuple[SyscallRefusal, ...] = (
    SyscallRefusal("truncate"),
    # Opening for reading with O_TRUNC: Landlock checks only the reading.
    SyscallRefusal("open", 1, _O_TRUNC, _O_TRUNC | _O_ACCMODE),
    SyscallRefusal("openat", 2, _O_TRUNC, _O_TRUNC | _O_ACCMODE),
    # Its flags lie in memory; the C library goes without it.
    SyscallRefusal("openat2", error=errno.ENOSYS),
)
"""Refused because Landlock covers it only from ABI 3."""


def refusals(abi: int) -> tuple[SyscallRefusal, ...]:
    return (*NO_SOCKETS, *UNGUARDED, *(NO_TRUNCATION if abi < 3 else ()))


_PROCESSES = (
    "processes: no namespace of their own; they are ended by a process of the bridge that adopts "
    "what the program leaves, and not by the kernel"
)


def rules(interpreter: Interpreter, directory: RunDirectory) -> list[LandlockRule]:
    """Return the Landlock rules for all paths that programs may open."""
    made: list[LandlockRule] = []
    for bind in interpreter.binds:
        hidden = {
            PurePosixPath(path).name
            for path in interpreter.hidden
            if str(PurePosixPath(path).parent) == bind.inside
        }
        if hidden:
            made.append(LandlockRule(bind.source, landlock.READ_DIR))
            made += [
                LandlockRule(str(path), landlock.READ, is_file=not path.is_dir())
                for path in sorted(Path(bind.source).iterdir())
                if path.name not in hidden
            ]
            continue
        # Only the interpreter and its dynamic loader are executed.
        loads = PurePosixPath(bind.inside).name.startswith(("ld-", "ld.so", "ld64."))
        runs = loads or bind.inside == interpreter.executable
        rights = landlock.READ | (landlock.EXECUTE if runs else 0)
        made.append(LandlockRule(bind.source, rights, is_file=bind.is_file))
    writable = (directory.workspace, directory.tmp)
    made += [LandlockRule(str(path), landlock.WRITE) for path in writable]
    # The first process opens it, so the rule means that process's directory.
    return made + device_rules("/proc/self")


def isolation(
    spec: LaunchSpec, around: ProcessSurroundings, *, as_nobody: bool, root: bool
) -> Isolation:
    """Return a launch's layers, and what the tier lacks.

    Unless `as_nobody`, programs run as the bridge's user, who may be `root` of a user namespace.
    """
    layers = [
        "landlock",
        "seccomp",
        "own-seccomp",
        "network-calls-refused",
        "no-capabilities",
        "no-new-privileges",
        "ulimits",
    ]
    report = LayerReport(layers)
    report.add("unprivileged-user", not root)
    report.weaker.append(TIER)
    if not as_nobody:
        report.weaker.append("user: programs run under the bridge's own user id")
    if lacking := landlock.describe_gaps(around.landlock_abi):
        report.weaker.append(lacking)
    report.weaker += [WEAKER_DISK, _PROCESSES]
    add_limits(report, spec.limits, around)
    return report.isolation(NAME)


KERNEL_REMEDY = (
    "Use a kernel since 5.13 with Landlock on (`lsm=landlock,...` on its command line), or leave "
    "MCP_BRIDGE_RUNTIME at auto."
)


class LandlockBackend(UnnamespacedBackend):
    name = NAME
    title = "landlock (the weaker tier)"
    version: Callable[[], int] = staticmethod(landlock.version)
    seccomp = libseccomp.LIBRARY

    def _look(self) -> Findings:
        if sys.platform != "linux":
            raise SandboxError("Only Linux has Landlock.", code="wrong_system")
        abi = self.version()
        if abi < 1:
            message = f"This kernel ({os.uname().release}) has no Landlock, or has it turned off."
            raise SandboxError(message, remedy=KERNEL_REMEDY, code="engine_not_found")
        refused = libseccomp.refusal_filter(refusals(abi), self.seccomp)
        return self._look_at_host(
            host.unprivileged_uid(),
            landlock_abi=abi,
            filters=(*libseccomp.filters(self.seccomp), refused),
        )

    def _steps(
        self, found: Findings, directory: RunDirectory, spec: LaunchSpec
    ) -> Mapping[str, Json]:
        made = rules(found.interpreter, directory)
        return {
            "bounded": False,
            "oom_score": True,
            "rlimits": rlimits(spec.limits, found.around),
            "landlock": landlock.ruleset(made, found.around.landlock_abi),
            "filters": [base64.b64encode(program).decode("ascii") for program in found.filters],
        }

    def _isolation(self, found: Findings, spec: LaunchSpec) -> Isolation:
        as_nobody = found.uid is not None
        root = os.getuid() == 0 and not as_nobody
        return isolation(spec, found.around, as_nobody=as_nobody, root=root)

    def _details(self, found: Findings) -> Mapping[str, str]:
        return {
            "landlock": f"version {found.around.landlock_abi}",
            "control groups": ", ".join(sorted(found.around.controllers)) or "none",
            "directories": str(found.base),
        }
