"""The configuration of a sandbox's container, and its layers. Pure but for `with_host_paths`.

The create call sets every field, so that neither a changed default nor the user's configuration
loosens a sandbox. Limits that an engine cannot apply are not requested and reported as weaker.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.model import HostKernel, Isolation, Json
from bridge.sandbox import proc_entries
from bridge.sandbox.backend import (
    HOSTNAME,
    NOBODY_ID,
    PENDING_SIGNALS,
    SHM_BYTES,
    TMP,
    TMPFS_INODES,
    WORKSPACE,
    Bind,
    LaunchSpec,
    LayerReport,
    group_of,
    has_user_directories,
)
from bridge.sandbox.container.api import EngineFacts
from bridge.sandbox.layers import OWN_KERNEL, brings_own_kernel
from bridge.sandbox.ownership import RUN_LABEL
from bridge.sandbox.syscalls import Purpose

# gVisor needs 9 to 13 host threads for each process inside, and ends without them.
GVISOR_TASKS = 16

_EMPTY_TMPFS = "ro,noexec,nosuid,nodev,size=4096,mode=0755"


@dataclass(frozen=True, kw_only=True)
class Placement:
    image: str
    user: str  # "uid:gid" inside the container.
    oci_runtime: str  # For docker only; empty for its default. podman has no such option.
    labels: Mapping[str, str]
    seccomp: str = ""  # The engine's seccomp option; empty for the engine's own profile.
    user_namespace: str = ""  # podman's mode; empty for the engine's default.
    tasks_per_process: int = 1  # Tasks of the pids limit that one process inside takes.
    local: bool = False  # Whether the engine sees this machine's files.
    # Known hard limits of the engine's host.
    max_open_files: float = math.inf
    max_processes: float = math.inf


def container_name(run_id: str, nonce: str) -> str:
    safe = re.sub(r"[^a-zA-Z0-9_.-]+", "-", run_id)[:64]  # A UUID fits, within the engines' limits.
    return f"mcp-code-bridge-{safe}-{nonce}"


_NOBODY = f"{NOBODY_ID}:{NOBODY_ID}"


def with_host_paths(
    placement: Placement, spec: LaunchSpec, facts: EngineFacts, seccomp: Mapping[Purpose, str]
) -> Placement:
    """Return the user, image and filter of a sandbox with host paths. Blocks.

    The user is the bridge's own, or for root's bridge the owner of the workspace or of the writable
    directories, but never root. Written files belong to that user outside. A command's image is its
    profile's and may contain anything.
    """
    command = spec.command
    if command is not None:
        purpose: Purpose = "networked" if command.network else "command"
        profile = seccomp.get(purpose, "")
        placement = replace(placement, image=command.image, user=_NOBODY, seccomp=profile)
        own = [bind for bind in spec.binds if bind.inside == WORKSPACE]
    elif has_user_directories(spec.binds) and placement.user == _NOBODY:
        own = [bind for bind in spec.binds if bind.writable]
    else:
        return placement
    user = _NOBODY
    if os.getuid() != 0:
        user = f"{os.getuid()}:{os.getgid()}"
    else:
        owners = {Path(bind.source).stat().st_uid for bind in own} - {0}
        if len(owners) == 1:
            uid = owners.pop()
            user = f"{uid}:{group_of(uid)}"
    keeps_ids = facts.kind == "podman" and facts.rootless
    return replace(placement, user=user, user_namespace="keep-id" if keeps_ids else "")


def _has_network(spec: LaunchSpec) -> bool:
    return spec.command is not None and spec.command.network


def container_config(spec: LaunchSpec, facts: EngineFacts, placement: Placement) -> dict[str, Json]:
    return {
        "Image": placement.image,
        "Entrypoint": list(spec.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())],
        "User": placement.user,
        "WorkingDir": spec.command.cwd if spec.command is not None else WORKSPACE,
        "Hostname": HOSTNAME,
        "Domainname": "",
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # If the bridge dies, stdin ends and the process exits.
        "StdinOnce": True,
        "Tty": False,
        # Docker then does not write its own hosts and resolv.conf.
        "NetworkDisabled": not _has_network(spec),
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Volumes": {},
        "Labels": {**placement.labels, RUN_LABEL: spec.run_id},
        "HostConfig": _host_config(spec, facts, placement),
    }


def _host_config(spec: LaunchSpec, facts: EngineFacts, placement: Placement) -> dict[str, Json]:
    config: dict[str, Json] = {
        "NetworkMode": "default" if _has_network(spec) else "none",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": placement.user_namespace,
        "ShmSize": SHM_BYTES,
        "Tmpfs": _tmpfs(spec, facts, placement.user),
        "Binds": [],
        "Devices": [],
        "GroupAdd": [],
        "Ulimits": _ulimits(spec, placement),
        # A program's output must not be logged to the host's disk.
        "LogConfig": {"Type": "none", "Config": {}},
        # The guest's supervisor reaps; the engine's init helper may not be installed.
        "Init": False,
        # The bridge removes it: automatic removal would remove the exit report too.
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    if placement.seccomp:
        config["SecurityOpt"].append(f"seccomp={placement.seccomp}")
    if facts.kind == "podman" and not _has_network(spec):
        # podman copies the host's names and name servers in, even without a network, unless these
        # paths are mounted. Every host has the null device.
        config["Binds"] += ["/dev/null:/etc/hosts:ro", "/dev/null:/etc/resolv.conf:ro"]
    given, mounts = _mount_host_paths(spec, facts, placement)
    config["Binds"] += given
    if mounts:
        config["Mounts"] = mounts
    config.update(_resources(spec, facts, placement))
    if facts.kind == "docker" and placement.oci_runtime:
        config["Runtime"] = placement.oci_runtime
    own_kernel = brings_own_kernel(placement.oci_runtime or facts.oci_runtime)
    masks = [] if own_kernel else proc_entries.masked_by_engines(local=placement.local)
    if masks and facts.kind == "docker":
        config["MaskedPaths"] = masks  # In place of docker's own, which are among them.
    elif masks:
        config["SecurityOpt"].append(f"mask={':'.join(masks)}")  # Next to podman's own.
    return config


def _resources(spec: LaunchSpec, facts: EngineFacts, placement: Placement) -> dict[str, Json]:
    """Return the limits that the engine applies; some engines refuse other ones."""
    limits = spec.limits
    resources: dict[str, Json] = {}
    if "memory" in facts.controllers:
        resources["Memory"] = limits.memory_bytes
        # The sum of memory and swap: no swap.
        resources["MemorySwap"] = limits.memory_bytes
        if facts.cgroup_version == "1":
            resources["MemorySwappiness"] = 0  # v2 has no such option
    if "pids" in facts.controllers:
        resources["PidsLimit"] = limits.pids * placement.tasks_per_process
    if "cpu" in facts.controllers and limits.cpus is not None:
        # Docker refuses more CPUs than it has.
        cpus = min(limits.cpus, facts.cpus) if facts.cpus else limits.cpus
        resources["NanoCpus"] = int(cpus * 1_000_000_000)
    return resources


def _tmpfs(spec: LaunchSpec, facts: EngineFacts, user: str) -> dict[str, str]:
    options = "rw,noexec,nosuid,nodev,mode=1777"
    # If the image has the directory, the mount has its mode, so the owner matters too.
    if facts.kind == "docker":
        options += f",nr_inodes={TMPFS_INODES}"
        uid, _, gid = user.partition(":")
        if uid.isdecimal():  # a name means something only inside the image
            options += f",uid={uid}" + (f",gid={gid}" if gid.isdecimal() else "")
    else:
        options += ",U"  # podman's option for "owned by the user"; it has no nr_inodes
    own = (WORKSPACE,) if spec.command is None else spec.command.writable
    mounts = {TMP: f"{options},size={spec.limits.tmp_bytes}"}
    mounts |= dict.fromkeys(own, f"{options},size={spec.limits.workspace_bytes}")
    if facts.kind == "podman":
        # On a read-only root podman mounts writable, unsized tmpfs here, unless one is given.
        mounts["/run"] = _EMPTY_TMPFS
        mounts["/var/tmp"] = _EMPTY_TMPFS
    return mounts


def _mount_host_paths(
    spec: LaunchSpec, facts: EngineFacts, placement: Placement
) -> tuple[list[str], list[Json]]:
    """Return the host's directories as `Binds` for a local podman, or as `Mounts` for others.

    Only podman's binds have nosuid, nodev and noexec, but podman creates missing directories, which
    is wrong on another machine. For mounts, "no_new_privs" and dropped capabilities replace nosuid
    and nodev.
    """
    words: list[str] = []
    mounts: list[Json] = []
    files = spec.command.files if spec.command is not None else ()
    shown = [Bind(source=file.source, inside=file.inside) for file in files]
    for bind in (*spec.binds, *shown):
        # Not for commands, which may execute files of their directories.
        words_for = spec.command is None and facts.kind == "podman" and placement.local
        if words_for and ":" not in bind.source:
            options = f"{'rw' if bind.writable else 'ro'},nosuid,nodev"
            options += "" if bind.executable else ",noexec"
            words.append(f"{bind.source}:{bind.inside}:{options}")
        else:
            mount = {"Type": "bind", "Source": bind.source, "Target": bind.inside}
            mounts.append({**mount, "ReadOnly": not bind.writable})
    return words, mounts


def _ulimits(spec: LaunchSpec, placement: Placement) -> list[dict[str, Json]]:
    files = min(spec.limits.open_files, placement.max_open_files)
    # RLIMIT_NPROC counts a user's processes on the whole host, so it only backs the pids limit.
    processes = min(4096, placement.max_processes)
    # Always set, because engines' defaults may exceed the host's limits.
    made = {"nofile": files, "nproc": processes, "core": 0, "sigpending": PENDING_SIGNALS}
    if spec.command is not None:
        made |= {"cpu": spec.command.cpu_seconds, "fsize": spec.command.file_bytes}
    return [{"Name": name, "Soft": most, "Hard": most} for name, most in made.items()]


def isolation(
    spec: LaunchSpec,
    facts: EngineFacts,
    placement: Placement,
    *,
    oci_runtime: str,
    lacking: Sequence[str] = (),
    host_kernel: HostKernel | None = None,
) -> Isolation:
    """Return the layers on an engine, and those that are weaker or `lacking` there."""
    layers = [
        *(() if _has_network(spec) else ("no-network",)),
        "read-only-root",
        "sized-tmpfs-noexec",
        "no-capabilities",
        "no-new-privileges",
        "private-ipc",
        "masked-proc",
    ]
    report = LayerReport(layers)
    root = placement.user.partition(":")[0] in ("0", "root", "")
    asked = "unprivileged user: MCP_BRIDGE_CONTAINER_USER asks for root"
    report.add("unprivileged-user", not root, asked)
    own_kernel = brings_own_kernel(oci_runtime)
    if own_kernel:
        # Most of these runtimes do not apply a filter to the program.
        report.layers.append(OWN_KERNEL)
    else:
        unfiltered = "seccomp: the engine runs containers without its filter"
        report.add("seccomp", placement.seccomp or facts.seccomp, unfiltered)
        report.add("own-seccomp", placement.seccomp)
    report.add(facts.mandatory_access, facts.mandatory_access)
    in_namespace = facts.rootless or facts.remaps_ids or placement.user_namespace
    report.add("user-namespace", in_namespace)
    report.weaker += lacking
    _add_limits(report, spec, facts, oci_runtime)
    if spec.command is None:
        report.add_binds(spec.binds)
        noexec = facts.kind == "podman" and placement.local
        if any(bind.writable for bind in spec.binds) and not noexec:
            report.weaker.append("directories: not noexec, so that written files can be executed")
    elif spec.command.network:
        report.weaker.append("no network: the profile grants the engine's default network")
    kernel = host_kernel if own_kernel else None
    return report.isolation(facts.kind, oci_runtime=oci_runtime, host_kernel=kernel)


def _add_limits(
    report: LayerReport, spec: LaunchSpec, facts: EngineFacts, oci_runtime: str
) -> None:
    cause = f"{facts.kind} reports that this host has no such cgroup controller"
    if oci_runtime in facts.unlimited:
        cause = f"{facts.kind} tells {oci_runtime} to ignore control groups"
    elif facts.rootless and facts.cgroup_version == "1":
        cause = f"rootless {facts.kind} on cgroup v1 applies none"
    elif facts.rootless:
        cause = f"the cgroup controller is not delegated to rootless {facts.kind}"
    for name in ("memory", "pids", *(("cpu",) if spec.limits.cpus is not None else ())):
        weaker = f"{name} limit: best effort, {cause}"
        report.add(f"{name}-limit", name in facts.controllers, weaker)
    left = "ulimits: best effort, rootless podman's API leaves them to the guest"
    report.add("ulimits", facts.obeys_ulimits, left)
