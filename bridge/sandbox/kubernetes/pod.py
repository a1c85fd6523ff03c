"""A sandbox's pod: its manifest, its first step and its layers. Pure.

The manifest isolates. The first step in the pod adds limits for each process, and the bridge's
system call filters, which block networks in any cluster.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.errors import LaunchError
from bridge.model import HostKernel, Isolation, Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.bundle import INTERPRETER
from bridge.sandbox.layers import OWN_KERNEL, brings_own_kernel
from bridge.sandbox.process.stage_loader import stage_text
from bridge.settings.kubernetes import Kubernetes

NAME = "kubernetes"

WORKSPACE = "/workspace"

LABELS = "mcp-code-bridge.org"
APP_LABEL = "app.kubernetes.io/managed-by"
APP = "mcp-code-bridge"
SERVICE_LABEL = f"{LABELS}/service"
OWNER_LABEL = f"{LABELS}/owner"
STATE_LABEL = f"{LABELS}/state"
SHAPE_LABEL = f"{LABELS}/shape"

CONFINED = b"ok"  # The first step writes this if all layers are in force, else the reason.

LOADER = f"""\
# mcp-code-bridge runs a program in this pod: its first step comes on stdin, with its length ahead.
import io
stdin = io.BufferedReader(io.FileIO(0, closefd=False), 1)
size = int.from_bytes(stdin.read(4), "big")
exec(stdin.read(size if size <= {1024 * 1024} else 0).decode())
"""
"""Every pod's program, which waits for its first step. It writes nothing before, since output
without a reader is lost. It reads exactly the step, with a buffer of one byte, since the channel
follows."""

COMMAND = (*INTERPRETER, LOADER)

# The process backends' stage does the rest. Its status goes to stdout here.
_STEP = """
import os, sys
os.environ.clear()
os.environ.update({env!r})
os.dup2(1, 3)
sys.argv[1:] = [{plan!r}]
exec({stage!r})
"""

USERS = range(10_000, 60_000)
"""Each pod gets a random user of these, because the kernel counts a user's processes on the whole
node. They are below 65,536, so that user namespaces have them."""


def pod_name(run_id: str) -> str:
    safe = re.sub(r"[^a-z0-9-]+", "-", run_id.lower())[:34].strip("-")
    return f"{APP}-{safe or 'run'}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Template:
    settings: Kubernetes
    image: str
    user: str = ""  # "uid:gid" inside; empty for a random user for each pod.
    owner: str  # The unique name of the bridge and its lease.
    # The `ownerReferences` of pods: the bridge's own pod, in the same namespace.
    references: Sequence[Mapping[str, Any]] = ()

    def manifest(self, name: str, limits: Limits, state: str) -> dict[str, Any]:
        """Return a pod's manifest; `state` is "used" or "warm"."""
        labels = {
            **self.settings.labels,
            APP_LABEL: APP,
            SERVICE_LABEL: self.settings.service,
            OWNER_LABEL: self.owner,
            STATE_LABEL: state,
            SHAPE_LABEL: self.shape(limits),
        }
        metadata = {
            "name": name,
            "labels": labels,
            "annotations": dict(self.settings.annotations),
            "ownerReferences": list(self.references),
        }
        spec = _spec(limits, self.settings, self.image, self.user or str(secrets.choice(USERS)))
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def shape(self, limits: Limits) -> str:
        """Return the label of interchangeable pods, which differ only in their user."""
        spec = _spec(limits, self.settings, self.image, self.user or "0")
        made = (spec, self.settings.labels, self.settings.annotations)
        text = json.dumps(made, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _spec(limits: Limits, settings: Kubernetes, image: str, user: str) -> dict[str, Any]:
    machine = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(
        platform.machine()
    )
    uid, _, gid = user.partition(":")
    group = int(gid or uid)
    seccomp = {"type": settings.seccomp}
    if settings.seccomp.startswith("localhost/"):
        name = settings.seccomp.removeprefix("localhost/")
        seccomp = {"type": "Localhost", "localhostProfile": name}
    sizes = {"tmp": limits.tmp_bytes, "workspace": limits.workspace_bytes}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        # It includes the time of a warm pod, its start and its deletion.
        "activeDeadlineSeconds": int(limits.timeout + settings.warm_seconds) + 120,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        # The cluster's names are not resolved inside.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "nodeSelector": {
            **({"kubernetes.io/arch": machine} if machine else {}),
            **settings.node_selector,
        },
        "tolerations": [dict(each) for each in settings.tolerations],
        "imagePullSecrets": [{"name": each} for each in settings.pull_secrets],
        "runtimeClassName": settings.runtime_class or None,
        "serviceAccountName": settings.service_account or None,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": int(uid),
            "runAsGroup": group,
            "fsGroup": group,
            "seccompProfile": seccomp,
        },
        "containers": [_container(limits, settings, image)],
        "volumes": [
            {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
            for name, size in sizes.items()
        ],
    }


def _container(limits: Limits, settings: Kubernetes, image: str) -> dict[str, Any]:
    most = {"memory": str(limits.memory_bytes)}
    if limits.cpus is not None:
        most["cpu"] = f"{max(1, round(limits.cpus * 1000))}m"
    return {
        "name": "sandbox",
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(COMMAND),
        "workingDir": WORKSPACE,
        "stdin": True,
        # If the bridge dies, stdin ends and the guest exits.
        "stdinOnce": True,
        "resources": {"limits": most, "requests": {**most, **settings.requests}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "workspace", "mountPath": WORKSPACE},
        ],
    }


def first_step(spec: LaunchSpec, filters: Sequence[bytes], *, own_user: bool) -> bytes:
    """Return the first bytes for a pod's stdin; `own_user` adds a limit on processes."""
    if spec.argv[:-1] != INTERPRETER:
        raise LaunchError(f"Pods run programs of `{' '.join(INTERPRETER)}`, not {spec.argv[0]}.")
    pids = spec.limits.pids
    plan = {
        "argv": [],
        "text": spec.argv[-1],
        "packages": [],
        "cwd": WORKSPACE,
        "unset": [],
        "mounts": [],
        "privileges": False,
        "rlimits": [
            ("RLIMIT_NOFILE", spec.limits.open_files, spec.limits.open_files),
            ("RLIMIT_CORE", 0, 0),
            *([("RLIMIT_NPROC", pids, pids)] if own_user else ()),
        ],
        "landlock": None,
        "filters": [base64.b64encode(each).decode("ascii") for each in filters],
        "status": 3,
    }
    text = _STEP.format(env=dict(spec.env), plan=json.dumps(plan), stage=stage_text())
    body = text.encode("utf-8")
    return len(body).to_bytes(4, "big") + body


_NO_NOEXEC = (
    "sized-tmpfs-noexec: /tmp and /workspace are sized, but Kubernetes cannot mount them without "
    "execution"
)
_PIDS = "pids limit: counted per user of the node; a pod has a user of its own unless you chose one"
_LOGS = (
    "logs: the node keeps what passes through the channel in its log files until the pod is gone"
)

_LAYERS = (
    "read-only-root", "no-capabilities", "no-new-privileges", "private-ipc", "masked-proc",
    "unprivileged-user", "seccomp", "own-seccomp", "network-calls-refused", "ulimits",
    "memory-limit",
)  # fmt: skip


def isolation(limits: Limits, runtime_class: str, node: HostKernel | None = None) -> Isolation:
    """Return a pod's layers and the weaker ones; without `node` its kernel is unknown."""
    layers, weaker = [*_LAYERS], [_NO_NOEXEC, _PIDS, _LOGS]
    if limits.cpus is not None:
        layers.append("cpu-limit")
    if node is not None:
        layers.append(OWN_KERNEL)
    elif brings_own_kernel(runtime_class):
        weaker.append(
            f"own kernel: requested with {runtime_class}, not verified, since the bridge may not "
            "read nodes"
        )
    return Isolation(
        backend=NAME,
        oci_runtime=runtime_class,
        layers=tuple(layers),
        weaker=tuple(weaker),
        host_kernel=node,
    )
