"""bubblewrap's options, the stage's plan, and their layers. Pure, but for path checks.

Enforces: user, pid, mount, network, IPC, UTS and cgroup namespaces; a read-only root with only the
interpreter's files; sized tmpfs without execution; no capabilities; no new privileges; resource
limits; Landlock and the system call filters. Without a cgroup or Landlock, `Isolation.weaker` says
what is missing.

A user's command sees the system's libraries and its own directories and files, but not the system's
program directories. It may execute the named executables, their interpreters and the loader. It
can have the loader run any file that it can read, as its own code could.

Verified: from inside in every sandbox (`layers`), and by `tests/security/test_broken_layers.py`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.model import MEBIBYTE, Isolation, Json, Limits
from bridge.sandbox.backend import (
    HOME,
    HOSTNAME,
    NOBODY_ID,
    PENDING_SIGNALS,
    SHM,
    SHM_BYTES,
    TMP,
    TMPFS_INODES,
    WORKSPACE,
    CommandSpec,
    LaunchSpec,
    LayerReport,
)
from bridge.sandbox.bundle import INTERPRETER
from bridge.sandbox.layers import of_command
from bridge.sandbox.process import landlock
from bridge.sandbox.process.interpreter import Interpreter, stage_payload
from bridge.sandbox.process.landlock import LandlockRule

UID = NOBODY_ID  # The user id inside, and outside too if the bridge is root.

STACK_BYTES = 8 * MEBIBYTE  # Every distribution's default, which programs expect for recursion.

DATA_FACTOR = 4
DATA_SPARE = 1024 * MEBIBYTE
"""Without a cgroup the kernel bounds each process's private data. The bound is loose, since threads
and runtimes reserve far more than they use."""

_DEVICES = ("full", "null", "random", "urandom", "zero")
_DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
)


def copied_files(spec: LaunchSpec) -> tuple[bytes, ...]:
    """Return the contents of /etc/passwd, /etc/group and a command's own files."""
    home = WORKSPACE if spec.command is None else HOME
    own = spec.command.files if spec.command is not None else ()
    passwd = f"sandbox:x:{UID}:{UID}::{home}:/nonexistent\n"
    return passwd.encode(), f"sandbox:x:{UID}:\n".encode(), *(file.data for file in own)


SYSTEM = (
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share", "/usr/local/lib", "/usr/local/share",
    "/lib", "/lib32", "/lib64",
)  # fmt: skip
"""The system's libraries and data for commands, without its programs. All users may read them."""

SYSTEM_FILES = (
    "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/protocols", "/etc/services",
)  # fmt: skip

NETWORK_FILES = (
    "/etc/hosts", "/etc/nsswitch.conf", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/resolv.conf",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """The numbers of the descriptors that bubblewrap and the stage inherit."""

    info: int  # bubblewrap writes its child's pid and exit code here.
    status: int  # The stage writes `stage.CONFINED` here, or why it failed.
    files: tuple[int, ...] = ()  # The contents of `LaunchPlan.files`, in their order.
    permission: int = -1  # A command's stage reads `stage.PERMISSION` here.
    stage: int = -1  # The stage's payload.


@dataclass(frozen=True, kw_only=True)
class ProcessSurroundings:
    """This machine's features, on which a sandbox's layers depend."""

    landlock_abi: int  # The kernel's Landlock ABI version; 0 for none.
    cpus: int
    # The paths of /proc to cover, and whether each is a directory.
    masked: tuple[tuple[str, bool], ...] = ()
    # The cgroup controllers in use: "memory", "pids", "cpu".
    controllers: frozenset[str] = frozenset()
    limits_elsewhere: str = ""  # Why controllers are missing; empty if none is.
    processes_per_namespace: bool = True  # Whether the kernel counts processes per user namespace.


@dataclass(frozen=True)
class SandboxLayout:
    """One bubblewrap sandbox: what runs in it, its Python, and the machine around it.

    bubblewrap's options, the stage's plan and the layers follow from these.
    """

    spec: LaunchSpec
    interpreter: Interpreter
    around: ProcessSurroundings

    def isolation(self) -> Isolation:
        """Return the layers that a launch puts in force, and what is weaker."""
        layers = [
            "no-network",
            "read-only-root",
            "sized-tmpfs-noexec",
            "no-capabilities",
            "no-new-privileges",
            "private-ipc",
            "unprivileged-user",
            "user-namespace",
            "seccomp",
            "own-seccomp",
            "ulimits",
        ]
        report = LayerReport(layers)
        report.add("landlock", self.around.landlock_abi)
        if lacking := landlock.describe_gaps(self.around.landlock_abi):
            report.weaker.append(lacking)
        add_limits(report, self.spec.limits, self.around)
        if self.spec.command is None:
            report.add_binds(self.spec.binds)
        else:
            report.layers.append("granted-paths-only")
            anything = "named executables only: without Landlock anything there can be executed"
            report.add("named-executables-only", self.around.landlock_abi, anything)
            if self.spec.command.network:
                report.layers.remove("no-network")
                granted = "no network: the profile grants the host's, with its loopback services"
                report.weaker.append(granted)
        return report.isolation("bubblewrap")

    def options(self, descriptors: Descriptors) -> list[str]:
        spec, command = self.spec, self.spec.command
        return [
            "--unshare-all",
            "--unshare-user",
            *("--uid", str(UID), "--gid", str(UID)),
            *("--hostname", HOSTNAME),
            "--die-with-parent",
            "--new-session",
            # As pid 1 the guest's supervisor reaps, and its end ends the pid namespace. A command
            # would not get the signals that it does not handle.
            *(("--as-pid-1",) if command is None else ()),
            "--clearenv",
            *(w for name, value in sorted(spec.env.items()) for w in ("--setenv", name, value)),
            # For the stage's mounts. The stage drops both before the program starts.
            *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
            *(("--share-net",) if command is not None and command.network else ()),
            *("--json-status-fd", str(descriptors.info)),
            *self._tree(descriptors),
            *("--remount-ro", "/"),
            *("--chdir", "/"),
        ]

    def _tree(self, descriptors: Descriptors) -> list[str]:
        made: list[str] = []
        command = self.spec.command
        bound = self._bound()
        for source, place in bound:
            made += ["--ro-bind", source, place]
        links = list(self.interpreter.links)
        directories = [SHM, TMP, WORKSPACE]
        shown: list[str] = []
        if command is not None:
            # A command may need the packages that are hidden from programs.
            shown += [*SYSTEM, *(path for tool in command.executables for path in tool.needs)]
            links += [link for tool in command.executables for link in tool.links]
            places = [place for _, place in bound]
            links = [link for link in dict.fromkeys(links) if not _is_covered(link[1], places)]
            directories.append(HOME)
        for directory in self.interpreter.hidden:
            if not _is_covered(directory, shown):
                made += ["--tmpfs", directory, "--remount-ro", directory]
        for target, place in links:
            made += ["--symlink", target, place]
        copies = ["/etc/passwd", "/etc/group"]
        if command is not None:
            copies += [file.inside for file in command.files]
        made += self._pseudo_files()
        for directory in directories:
            made += ["--dir", directory]
        for given in self.spec.binds:
            made += ["--bind" if given.writable else "--ro-bind", given.source, given.inside]
        for place, descriptor in zip(copies, descriptors.files, strict=True):
            made += ["--perms", "0444", "--file", str(descriptor), place]
        for directory in command.writable if command is not None else ():
            made += ["--dir", directory]
        return made

    def _bound(self) -> list[tuple[str, str]]:
        """Return the read-only mounts other than `spec.binds`: source and path inside."""
        command = self.spec.command
        own = [(bind.source, bind.inside) for bind in self.interpreter.binds]
        if command is None:
            return own + [(bind.source, bind.inside) for bind in self.interpreter.tools]
        system = [path for path in map(Path, SYSTEM) if path.is_dir() and not path.is_symlink()]
        wanted = [(str(path), str(path)) for path in system]
        # Debian's JVMs do not start without their settings.
        java = map(str, Path("/etc").glob("java-*-openjdk"))
        files = [*SYSTEM_FILES, *java, *(NETWORK_FILES if command.network else ())]
        wanted += [(str(Path(path).resolve()), path) for path in files if Path(path).exists()]
        wanted += own
        for tool in command.executables:
            wanted += [(path, path) for path in (*tool.needs, *tool.executes)]
        kept: dict[str, str] = {}
        for source, place in sorted(wanted, key=lambda item: (len(item[1]), item[1])):
            if not _is_covered(place, kept):
                kept[place] = source
        return [(source, place) for place, source in kept.items()]

    def _pseudo_files(self) -> list[str]:
        """Return bubblewrap's options for /proc and the few devices."""
        made = ["--proc", "/proc"]
        for path, is_directory in self.around.masked:
            # An empty directory or the null device covers each.
            made += ["--tmpfs", path] if is_directory else ["--ro-bind", "/dev/null", path]
        for name in _DEVICES:
            made += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        for target, place in _DEVICE_LINKS:
            made += ["--symlink", target, place]
        return made

    def stage_input(
        self, descriptors: Descriptors, filters: Sequence[bytes], stage: str | bytes, code: str = ""
    ) -> bytes:
        """Return the loader's payload: the stage, and its plan for this launch."""
        plan = self.stage_plan(filters)
        if self.spec.command is not None:
            unnamed = self.interpreter.executable if self.around.landlock_abi else ""
            if unnamed in _executes(self.spec.command):
                unnamed = ""
            plan["examine"] = {
                "code": code,
                # That attempt would write to the workspace. The mount options show the layer.
                "attempts": [x for x in self.isolation().layers if x != "sized-tmpfs-noexec"],
                "unnamed": unnamed,
                "permission": descriptors.permission,
            }
        return stage_payload(stage, json.dumps({**plan, "status": descriptors.status}))

    def stage_plan(self, filters: Sequence[bytes]) -> dict[str, Json]:
        spec, command = self.spec, self.spec.command
        in_process = command is None and spec.argv[:4] == INTERPRETER and len(spec.argv) == 5
        return {
            "argv": list(spec.argv),
            "file": command.file if command is not None else None,
            "text": spec.argv[4] if in_process else None,
            "packages": list(self.interpreter.packages) if command is None else [],
            "cwd": command.cwd if command is not None else WORKSPACE,
            # bubblewrap always sets PWD.
            "unset": [name for name in ("PWD",) if name not in spec.env],
            "mounts": [
                [path, f"size={size},nr_inodes={TMPFS_INODES},mode=1777"]
                for path, size in memory_directories(spec).items()
            ],
            # bubblewrap mounts these, but cannot add "noexec".
            "noexec": [[bind.inside, bind.writable] for bind in spec.binds if not bind.executable],
            "rlimits": rlimits(spec.limits, self.around, command),
            "landlock": landlock.ruleset(
                self._rules(),
                self.around.landlock_abi,
                # A command with a network can connect, but not bind a port.
                connects=command is not None and command.network,
            ),
            "filters": [base64.b64encode(program).decode("ascii") for program in filters],
        }

    def _rules(self) -> list[LandlockRule]:
        command = self.spec.command
        reads, writes = ["/etc"], [SHM, TMP]
        # READ suffices to load libraries; EXECUTE is the right to start programs.
        rules = [
            LandlockRule(
                bind.inside,
                landlock.WRITE if bind.writable else landlock.READ,
                is_file=command is not None and bind.is_file,
            )
            for bind in self.spec.binds
        ]
        if command is None:
            own = (*self.interpreter.binds, *self.interpreter.tools)
            rules += [LandlockRule(bind.inside, landlock.RUN, is_file=bind.is_file) for bind in own]
            writes.append(WORKSPACE)
            # Programs can list the parents of mounted directories.
            reads += sorted({bind.inside.rpartition("/")[0] for bind in self.spec.binds} - {""})
        else:
            rules += [
                LandlockRule(place, landlock.READ, is_file=not Path(source).is_dir())
                for source, place in self._bound()
            ]
            rules += [LandlockRule(path, landlock.RUN, is_file=True) for path in _executes(command)]
            writes += command.writable
            reads.append(HOME)
        return [
            *rules,
            *device_rules(),
            *(LandlockRule(path, landlock.WRITE) for path in writes),
            *(LandlockRule(path, landlock.READ) for path in reads),
        ]

    def places(self) -> dict[str, bool]:
        made = dict.fromkeys(("/", *(place for _, place in self._bound())), False)
        own = self.spec.command.writable if self.spec.command is not None else ()
        made |= dict.fromkeys(("/proc", TMP, SHM, *own), True)
        made |= {rule.path: True for rule in device_rules()}
        return made | {bind.inside: bind.writable for bind in self.spec.binds}


def _is_covered(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def _executes(command: CommandSpec) -> dict[str, None]:
    return dict.fromkeys(path for tool in command.executables for path in tool.executes)


def verify_command(
    isolation: Isolation, places: Mapping[str, bool], facts: Mapping[str, Any]
) -> Isolation:
    """Return a command's isolation, as its stage saw it from inside."""
    strays = unexpected_mounts(facts.get("mount_table"), places)
    return of_command(isolation, {**facts, "unexpected_mounts": strays})


def unexpected_mounts(table: object, places: Mapping[str, bool]) -> list[str] | None:
    """Return mounts that are not in `places`, or writable against it; None if unknown.

    Mounts below a host path in `places` belong to that path.
    """
    if not isinstance(table, list) or not table:
        return None
    found = []
    for row in table:
        path, read_only = str(row[0]), row[1] is True
        for character in " \t\n\\":  # The table has these in octal. The backslash comes last.
            path = path.replace(f"\\{ord(character):03o}", character)
        place = max((each for each in places if _is_covered(path, (each,))), key=len, default=None)
        if place is None or not (read_only or places[place]):
            found.append(path)
    return found


def memory_directories(spec: LaunchSpec) -> dict[str, int]:
    own = (WORKSPACE,) if spec.command is None else spec.command.writable
    sizes = dict.fromkeys(own, spec.limits.workspace_bytes)
    return {TMP: spec.limits.tmp_bytes, **sizes, SHM: SHM_BYTES}


def rlimits(
    limits: Limits, around: ProcessSurroundings, command: CommandSpec | None = None
) -> list[tuple[str, int, int]]:
    """Return the resource limits of a sandbox's processes: name, soft, hard."""
    data = limits.memory_bytes * DATA_FACTOR + DATA_SPARE
    cpu = math.ceil(limits.timeout * around.cpus) + 10  # start-up, and the guest's own work
    # Older kernels count a user's processes on the whole host.
    processes = limits.pids if around.processes_per_namespace else 4096
    file_bytes = max(limits.tmp_bytes, limits.workspace_bytes, SHM_BYTES)
    if command is not None:
        cpu, file_bytes = command.cpu_seconds, command.file_bytes
    return [
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", cpu, cpu + 5),  # SIGXCPU first, then SIGKILL
        ("RLIMIT_FSIZE", file_bytes, file_bytes),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_NPROC", processes, processes),
        ("RLIMIT_STACK", STACK_BYTES, STACK_BYTES),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_MSGQUEUE", 0, 0),
        ("RLIMIT_SIGPENDING", PENDING_SIGNALS, PENDING_SIGNALS),
        *([] if "memory" in around.controllers else [("RLIMIT_DATA", data, data)]),
    ]


def device_rules(proc: str = "/proc") -> list[LandlockRule]:
    rules = [LandlockRule(f"/dev/{name}", landlock.USE_DEVICE, is_file=True) for name in _DEVICES]
    rules.append(LandlockRule(proc, landlock.USE_PROC))
    return rules


SHARED_COUNTERS = (
    "counters of the kernel: best effort, epoll watches and pipes count to the bridge's user"
)
"""The weakness of a sandbox that has the bridge's own user id outside."""


def add_limits(report: LayerReport, limits: Limits, around: ProcessSurroundings) -> None:
    """Add the layer of each limit in force, or the reason why the limit is weaker."""
    cause = around.limits_elsewhere or "its controller is not available to this user"
    applied = around.controllers | ({"pids"} if around.processes_per_namespace else set())
    for name, instead in (
        ("memory", "watched by the bridge"),
        ("pids", "counted per user of the host"),
        ("cpu", "CPU seconds only"),
    ):
        if name != "cpu" or limits.cpus is not None:
            weaker = f"{name} limit: best effort, {instead}; {cause}"
            report.add(f"{name}-limit", name in applied, weaker)
    report.add("memory-watch", "memory" not in applied)
