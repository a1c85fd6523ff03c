"""A sandbox's pod (its manifest, first step and layers), and the warm pods of a service.

The manifest isolates. The first step in the pod adds limits for each process, and the bridge's
system call filters, which block networks in any cluster.

Warm pods wait for one run each. Each bridge renews a lease. Bridges of one service share their warm
pods. A bridge claims a pod by a patch of the version that it saw, so that only one succeeds.
Bridges delete the pods of a bridge without a fresh lease. They list pods every few seconds, because
a watch may miss events.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import platform
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

from bridge.errors import LaunchError, SandboxError
from bridge.model import HostKernel, Isolation, Limits
from bridge.sandbox.backend import TMP, WORKSPACE, LaunchSpec, LayerReport
from bridge.sandbox.bundle import INTERPRETER
from bridge.sandbox.kubernetes.cluster import (
    Cluster,
    ClusterAnswerError,
    Document,
    has_ended,
    ignoring,
    is_gone,
    is_running,
    restarts,
)
from bridge.sandbox.layers import OWN_KERNEL, brings_own_kernel
from bridge.sandbox.process.interpreter import stage_text
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

NAME = "kubernetes"

LABELS = "mcp-code-bridge.org"
APP_LABEL = "app.kubernetes.io/managed-by"
APP = "mcp-code-bridge"
SERVICE_LABEL = f"{LABELS}/service"
OWNER_LABEL = f"{LABELS}/owner"
STATE_LABEL = f"{LABELS}/state"
SHAPE_LABEL = f"{LABELS}/shape"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

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
            # Autoscalers drain nodes to save cost. A run is not started again for that.
            "annotations": {SAFE_TO_EVICT: "false", **self.settings.annotations},
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
            for name, size in {"tmp": limits.tmp_bytes, "workspace": limits.workspace_bytes}.items()
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
            {"name": "tmp", "mountPath": TMP},
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
    report = LayerReport([*_LAYERS], [_NO_NOEXEC, _PIDS, _LOGS])
    report.add("cpu-limit", limits.cpus is not None)
    unverified = f"own kernel: requested with {runtime_class}, not verified, since the bridge may "
    unverified += "not read nodes"
    report.add(OWN_KERNEL, node, unverified if brings_own_kernel(runtime_class) else "")
    return report.isolation(NAME, oci_runtime=runtime_class, host_kernel=node)


TEND_SECONDS = 5.0  # Between two looks, unless a run claims a pod.
LOOK_SECONDS = 20.0  # A slow API server may delay a look; the next look does the rest.
LEASE_SECONDS = 60  # Longer than a slow look and the longest pause after it.


class WarmPods:
    """The service's warm pods, as one bridge manages them."""

    def __init__(self, cluster: Cluster, template: Template) -> None:
        self.cluster = cluster
        self._template = template
        self._settings = template.settings
        self._owner = template.owner
        self._limits: Limits | None = None
        self._taken = anyio.Event()
        self._labels = {APP_LABEL: APP, SERVICE_LABEL: self._settings.service}
        self.problem = ""  # The error of the last look, if any.
        self.capacity: int | None = None  # Pods that the namespace's quotas allow, if readable.
        # The names of this bridge's used pods.
        self.mine: set[str] = set()

    async def claim(self, limits: Limits) -> Document | None:
        """Claim a warm pod for a run; return None if there is none with these limits."""
        # Sessions have longer limits, and are too few for warm pods.
        if limits.timeout <= 3600.0:
            self._limits = limits
        self._taken.set()
        if not self._settings.warm:
            return None
        waiting = {STATE_LABEL: "warm", SHAPE_LABEL: self._template.shape(limits)}
        usable = [
            each
            for each in await self._list(self.cluster.pods, waiting)
            if is_running(each)
            and not (restarts(each) or self._is_old(each))
            and "deletionTimestamp" not in each["metadata"]
        ]
        # In random order, so that two bridges rarely try the same pod.
        for each in random.sample(usable, len(usable)):
            name = each["metadata"]["name"]
            claim = {
                "resourceVersion": each["metadata"]["resourceVersion"],
                "labels": {STATE_LABEL: "used", OWNER_LABEL: self._owner},
                "ownerReferences": list(self._template.references) or None,
            }
            self.mine.add(name)
            try:
                return await self.cluster.patch(f"{self.cluster.pods}/{name}", {"metadata": claim})
            except BaseException as error:
                self.mine.discard(name)
                if not is_gone(error):
                    raise
        return None

    async def tend(self) -> None:
        """Renew the lease, sweep, and keep this bridge's share warm, until cancelled."""
        pause = TEND_SECONDS
        while True:
            self._taken = anyio.Event()
            try:
                with anyio.fail_after(LOOK_SECONDS):
                    await self._look()
                self.problem, pause = "", TEND_SECONDS
            except (SandboxError, TimeoutError) as error:
                if not self.problem:
                    logger.warning("the warm pods cannot be managed: %s", error)
                self.problem = str(error) or f"No look at the pods ended in {LOOK_SECONDS:g} s."
                pause = min(pause * 2, LOOK_SECONDS)
            with anyio.move_on_after(pause):
                await self._taken.wait()

    async def read_quota(self) -> None:
        """Read how many pods the namespace's quotas allow, if the account may."""
        with suppress(SandboxError, ValueError, TypeError):
            pods: list[int] = []
            for quota in await self.cluster.list(self.cluster.quotas, {}):
                spec = quota.get("spec") or {}
                others = {"NotTerminating", "BestEffort"}.intersection(spec.get("scopes") or ())
                if not others and "scopeSelector" not in spec:
                    hard = spec.get("hard") or {}
                    pods += [int(hard[name]) for name in ("pods", "count/pods") if name in hard]
            self.capacity = max(1, min(pods)) if pods else None

    async def _look(self) -> None:
        pods, bridges, _ = await self._swept()
        await self.read_quota()
        if self._limits is None:
            return
        wanted = ("warm", self._owner)
        own = [p for p in pods if (_label(p, STATE_LABEL), _label(p, OWNER_LABEL)) == wanted]
        shape = self._template.shape(self._limits)
        for each in list(own):
            if _label(each, SHAPE_LABEL) != shape or self._is_old(each):
                await self.cluster.delete(f"{self.cluster.pods}/{each['metadata']['name']}", each)
                own.remove(each)
        part = share(self._settings.warm, sorted(bridges), self._owner)
        try:
            for _ in range(min(part - len(own), 4)):  # A node starts about three a second.
                made = self._template.manifest(pod_name("warm"), self._limits, "warm")
                await self.cluster.create(self.cluster.pods, made)
        except SandboxError as error:
            if error.code != "quota":
                raise
            # Runs use the quota, so this is no problem.
            logger.info("fewer warm pods than configured: %s", error.message)

    async def sweep(self) -> int:
        return (await self._swept())[2]

    async def _swept(self) -> tuple[list[Document], set[str], int]:
        """Sweep; return the remaining pods, the living bridges and the number of deleted pods."""
        await self.renew()
        # Pods first: the owner of a listed pod had a lease before it.
        pods = await self._list(self.cluster.pods)
        leases = await self._list(self.cluster.leases)
        bridges = {each["metadata"]["name"] for each in leases if self._is_fresh(each)}
        for each in leases:
            if each["metadata"]["name"] not in bridges:
                await self.cluster.delete(f"{self.cluster.leases}/{each['metadata']['name']}", each)
        remaining, removed = [], 0
        for each in pods:
            name, owner = each["metadata"]["name"], _label(each, OWNER_LABEL)
            used = _label(each, STATE_LABEL) == "used" and name not in self.mine
            if owner not in bridges or (owner == self._owner and used):
                logger.info("deleting pod %s, which no bridge uses", name)
                await self.cluster.delete(f"{self.cluster.pods}/{name}", each)
                removed += 1
            else:
                remaining.append(each)
        return remaining, bridges, removed

    async def leave(self) -> None:
        # `delete` skips a changed pod, which another bridge may have claimed.
        while own := await self._list(self.cluster.pods, {OWNER_LABEL: self._owner}):
            for each in own:
                await self.cluster.delete(f"{self.cluster.pods}/{each['metadata']['name']}", each)
        await self.cluster.delete(f"{self.cluster.leases}/{self._owner}")

    async def renew(self) -> None:
        lease = {
            "metadata": {"name": self._owner, "labels": self._labels},
            "spec": {
                "renewTime": self.cluster.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "leaseDurationSeconds": LEASE_SECONDS,
                "holderIdentity": self._owner,
            },
        }
        try:
            await self.cluster.patch(f"{self.cluster.leases}/{self._owner}", lease)
        except ClusterAnswerError as refusal:
            if refusal.status != 404:
                raise
            # Another task may have created it.
            with ignoring(409):
                await self.cluster.create(self.cluster.leases, lease)

    async def _list(self, path: str, labels: Mapping[str, str] | None = None) -> list[Document]:
        return await self.cluster.list(path, {**self._labels, **(labels or {})})

    def _is_fresh(self, lease: Document) -> bool:
        age = self._age((lease.get("spec") or {}).get("renewTime"))
        return age is not None and abs(age) < LEASE_SECONDS

    def _is_old(self, document: Document) -> bool:
        age = self._age(document["metadata"].get("creationTimestamp"))
        return has_ended(document) or (age or 0.0) > self._settings.warm_seconds

    def _age(self, text: str | None) -> float | None:
        """Return the seconds since a time; None for an empty or invalid one."""
        try:
            return (self.cluster.now() - datetime.fromisoformat(text or "")).total_seconds()
        except ValueError:
            return None


def share(most: int, bridges: Sequence[str], name: str) -> int:
    if name not in bridges:
        return 0
    each, left = divmod(most, len(bridges))
    return each + (bridges.index(name) < left)


def _label(document: Document, name: str) -> str:
    return str((document["metadata"].get("labels") or {}).get(name, ""))
