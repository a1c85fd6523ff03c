"""What bubblewrap is told, what the stage does inside, and which layers that makes.

Pure: values in, values out. Everything is written out, and nothing depends on bubblewrap's defaults
beyond an empty root. bubblewrap makes the namespaces and the read-only tree; `stage`, the first
thing that runs inside, does what bubblewrap cannot and locks up.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.model import MEBIBYTE, Isolation, Json, Limits
from bridge.sandbox.backend import Bind, LaunchSpec
from bridge.sandbox.binds import bind_layers
from bridge.sandbox.process import landlock
from bridge.sandbox.process.compiling import loaded
from bridge.sandbox.process.interpreter import Interpreter

WORKSPACE = "/workspace"
TMP = "/tmp"
SHM = "/dev/shm"

HOSTNAME = "sandbox"
UID = 65534
"""Inside, and outside too when the bridge is root: an id that owns nothing anywhere."""

SHM_BYTES = 16 * MEBIBYTE
"""For /dev/shm, which multiprocessing's locks need."""

TMPFS_INODES = 16_384
"""Files and directories each writable mount can hold: small files cost kernel memory."""

STACK_BYTES = 8 * MEBIBYTE
"""What every distribution has, so that recursion ends where programs expect it to."""

CPU_SPARE_SECONDS = 10
"""On top of what the time limit allows on all CPUs: start-up, and the guest's own work."""

CPU_KILL_SECONDS = 5
"""Between the signal that says "out of CPU time" and the one that cannot be ignored."""

ADDRESS_SPACE_FACTOR = 4
ADDRESS_SPACE_SPARE = 1024 * MEBIBYTE
"""Where a control group bounds memory, address space is only a backstop: threads and allocators
reserve far more of it than they use."""

PROCESSES_BACKSTOP = 4096
"""Where the kernel counts processes per user of the whole host instead of per sandbox."""

_DEVICES = ("full", "null", "random", "urandom", "zero")
_DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
)

MASKED = (
    "/proc/acpi",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
)
"""What container engines hide of /proc; those of them that this host has are covered."""

PASSWD = f"sandbox:x:{UID}:{UID}::{WORKSPACE}:/nonexistent\n"
GROUP = f"sandbox:x:{UID}:\n"

PYTHON = ("python3", "-I", "-S", "-c")


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """Open descriptors that are handed down, by their numbers.

    Attributes:
        info: Where bubblewrap writes what it started and how that ended.
        status: Where the stage writes why it could not go on; its silent end is success.
        passwd, group: Hold the texts of those files.
        data: Hold further files, in the order of `Start.data`.
        leave: Where the stage reads that it may go on, when it was asked what it sees.
        stage: Holds the stage and its plan.
    """

    info: int
    status: int
    passwd: int = -1
    group: int = -1
    data: tuple[int, ...] = ()
    leave: int = -1
    stage: int = -1


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What decides how a sandbox is put together, beyond what was asked for.

    Attributes:
        landlock_abi: The kernel's version of it; 0 for none.
        cpus: How many this machine has.
        masked: Those of `MASKED` that exist, and whether each is a directory.
        controllers: What a control group bounds: "memory", "pids", "cpu".
        limits_elsewhere: Why there is no control group; empty when there is.
        processes_per_namespace: Whether the kernel counts processes per user namespace.
    """

    landlock_abi: int
    cpus: int
    masked: tuple[tuple[str, bool], ...] = ()
    controllers: frozenset[str] = frozenset()
    limits_elsewhere: str = ""
    processes_per_namespace: bool = True


def stage_input(
    spec: LaunchSpec,
    interpreter: Interpreter,
    around: Surroundings,
    descriptors: Descriptors,
    filters: Sequence[bytes],
    stage: str | bytes,
) -> bytes:
    """Make what bubblewrap's command reads: the stage, and what it is to do."""
    plan = stage_plan(spec, interpreter, around, filters)
    return loaded(stage, json.dumps({**plan, "status": descriptors.status}))


def options(
    spec: LaunchSpec, interpreter: Interpreter, around: Surroundings, descriptors: Descriptors
) -> list[str]:
    """Make bubblewrap's options."""
    return [
        "--unshare-all",
        "--unshare-user",
        *("--uid", str(UID), "--gid", str(UID)),
        *("--hostname", HOSTNAME),
        "--die-with-parent",
        "--new-session",
        # The guest's supervisor reaps; its end is the end of everything in the pid namespace.
        "--as-pid-1",
        "--clearenv",
        *_environment(spec.env),
        # For the stage's mounts; it gives both up before the program starts.
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
        *("--json-status-fd", str(descriptors.info)),
        *_tree(interpreter, around, descriptors, spec.binds),
        *("--remount-ro", "/"),
        *("--chdir", "/"),
    ]


def _environment(env: Mapping[str, str]) -> list[str]:
    return [word for name, value in sorted(env.items()) for word in ("--setenv", name, value)]


def _tree(
    interpreter: Interpreter,
    around: Surroundings,
    descriptors: Descriptors,
    binds: Sequence[Bind],
) -> list[str]:
    made: list[str] = []
    for bind in interpreter.binds:
        made += ["--ro-bind", bind.source, bind.inside]
    for directory in interpreter.hidden:
        made += ["--tmpfs", directory, "--remount-ro", directory]
    for target, place in interpreter.links:
        made += ["--symlink", target, place]
    made += ["--perms", "0444", "--file", str(descriptors.passwd), "/etc/passwd"]
    made += ["--perms", "0444", "--file", str(descriptors.group), "/etc/group"]
    made += pseudo_files(around)
    for directory in (SHM, TMP, WORKSPACE):
        made += ["--dir", directory]
    for given in binds:
        made += ["--bind" if given.writable else "--ro-bind", given.source, given.inside]
    return made


def pseudo_files(around: Surroundings) -> list[str]:
    """Return the options that make /proc and the few devices."""
    made = ["--proc", "/proc"]
    for path, is_directory in around.masked:
        # An empty directory, or a file that is empty to whoever may read it.
        made += ["--tmpfs", path] if is_directory else ["--ro-bind", "/dev/null", path]
    for name in _DEVICES:
        made += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for target, place in _DEVICE_LINKS:
        made += ["--symlink", target, place]
    return made


def stage_plan(
    spec: LaunchSpec, interpreter: Interpreter, around: Surroundings, filters: Sequence[bytes]
) -> dict[str, Json]:
    """Make what the stage is to do; see `stage`."""
    limits = spec.limits
    in_process = spec.argv[:4] == PYTHON and len(spec.argv) == 5
    return {
        "argv": list(spec.argv),
        "text": spec.argv[4] if in_process else None,
        "packages": list(interpreter.packages),
        "cwd": WORKSPACE,
        # bubblewrap sets it, whether asked to or not.
        "unset": [name for name in ("PWD",) if name not in spec.env],
        "mounts": [list(mount) for mount in _mounts(limits)],
        # Bubblewrap sees to everything else about them.
        "noexec": [[bind.inside, bind.writable] for bind in spec.binds if not bind.executable],
        "rlimits": rlimits(limits, around),
        "landlock": landlock_rules(interpreter, around, spec.binds),
        "filters": [base64.b64encode(program).decode("ascii") for program in filters],
    }


def landlock_rules(
    interpreter: Interpreter, around: Surroundings, binds: Sequence[Bind] = ()
) -> dict[str, Json] | None:
    """Return the Landlock ruleset for programs, as the stage takes it."""
    rules = landlock.ruleset(_rules(interpreter, binds), around.landlock_abi)
    if rules is None:
        return None
    return {
        "files": rules.files,
        "network": rules.network,
        "scopes": rules.scopes,
        "rules": [list(rule) for rule in rules.rules],
    }


def _mounts(limits: Limits) -> tuple[tuple[str, str], ...]:
    return (
        (TMP, tmpfs_options(limits.tmp_bytes)),
        (WORKSPACE, tmpfs_options(limits.workspace_bytes)),
        (SHM, tmpfs_options(SHM_BYTES)),
    )


def tmpfs_options(size: int) -> str:
    """Return the mount options of a writable directory in memory."""
    return f"size={size},nr_inodes={TMPFS_INODES},mode=1777"


def rlimits(limits: Limits, around: Surroundings) -> list[tuple[str, int, int]]:
    """Return the resource limits of a sandbox's processes: name, soft, hard."""
    address_space = limits.memory_bytes
    if "memory" in around.controllers:
        address_space = limits.memory_bytes * ADDRESS_SPACE_FACTOR + ADDRESS_SPACE_SPARE
    cpu = math.ceil(limits.timeout * around.cpus) + CPU_SPARE_SECONDS
    processes = limits.pids if around.processes_per_namespace else PROCESSES_BACKSTOP
    file_bytes = max(limits.tmp_bytes, limits.workspace_bytes, SHM_BYTES)
    return [
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", cpu, cpu + CPU_KILL_SECONDS),
        ("RLIMIT_FSIZE", file_bytes, file_bytes),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_NPROC", processes, processes),
        ("RLIMIT_STACK", STACK_BYTES, STACK_BYTES),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_MSGQUEUE", 0, 0),
        ("RLIMIT_AS", address_space, address_space),
    ]


def _rules(interpreter: Interpreter, binds: Sequence[Bind]) -> list[landlock.Rule]:
    rules = [
        landlock.Rule(path=bind.inside, rights=landlock.RUN, is_file=bind.is_file)
        for bind in interpreter.binds
    ]
    rules += [landlock.Rule(path=path, rights=landlock.WRITE) for path in (SHM, TMP, WORKSPACE)]
    # Code is loaded from what may be read; the right to execute is that of starting programs.
    rules += [
        landlock.Rule(path=bind.inside, rights=landlock.WRITE if bind.writable else landlock.READ)
        for bind in binds
    ]
    # What is beside the places of several: so that programs can list them.
    above = {bind.inside.rpartition("/")[0] for bind in binds} - {""}
    rules += [landlock.Rule(path=path, rights=landlock.READ) for path in sorted(above)]
    rules += device_rules()
    rules.append(landlock.Rule(path="/etc", rights=landlock.READ))
    return rules


def device_rules() -> list[landlock.Rule]:
    """Return the rules for what `pseudo_files` makes."""
    rules = [
        landlock.Rule(path=f"/dev/{name}", rights=landlock.USE_DEVICE, is_file=True)
        for name in _DEVICES
    ]
    rules.append(landlock.Rule(path="/proc", rights=landlock.USE_PROC))
    return rules


def isolation(spec: LaunchSpec, around: Surroundings) -> Isolation:
    """Say which layers a launch puts in force, and which it cannot."""
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
    weaker = []
    if around.landlock_abi:
        layers.append("landlock")
    lacking = landlock.missing(around.landlock_abi)
    if lacking:
        weaker.append(lacking)
    cause = around.limits_elsewhere or "its controller is not available to this user"
    limit_layer(layers, weaker, "memory", around, f"best effort, per process; {cause}")
    if "pids" in around.controllers or around.processes_per_namespace:
        layers.append("pids-limit")
    else:
        weaker.append(f"pids limit: best effort, counted per user of the host; {cause}")
    if spec.limits.cpus is not None:
        limit_layer(layers, weaker, "cpu", around, f"best effort, CPU seconds only; {cause}")
    shown, open_ones = bind_layers(spec.binds)
    layers += shown
    weaker += open_ones
    return Isolation(backend="bubblewrap", layers=tuple(layers), weaker=tuple(weaker))


def limit_layer(
    layers: list[str], weaker: list[str], name: str, around: Surroundings, lacking: str
) -> None:
    """Note that a control group bounds something, or why none does."""
    if name in around.controllers:
        layers.append(f"{name}-limit")
    else:
        weaker.append(f"{name} limit: {lacking}")
