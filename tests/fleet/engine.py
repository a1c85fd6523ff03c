"""The cluster as the contract suite and the attacks see an engine: from outside of the backend."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.sandbox.backend import Sandbox
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.settings.kubernetes import Kubernetes
from scripts.fleet.cluster import Cluster, Node
from scripts.fleet.images import configuration
from scripts.fleet.running import RUNTIME_IMAGE
from scripts.image import changes, image_key
from tests.contract.rig import Engine
from tests.fleet.rig import NAMESPACE, pod_names, pods

TABLE = Kubernetes(namespace=NAMESPACE, image=RUNTIME_IMAGE, pull_policy="Never")


@dataclass(frozen=True, kw_only=True)
class ClusterEngine(Engine):
    cluster: Cluster

    @property
    def oom_reports(self) -> tuple[bool | None, ...]:
        """A kubelet names it where the first process was the victim; else it may not know."""
        return (True, None)

    def ours(self) -> list[str]:
        return [
            str(pod["metadata"]["name"])
            for pod in pods(self.cluster)
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def image_environment(self) -> frozenset[str]:
        found = configuration(changes("slim", image_key("slim")))
        return frozenset(entry.partition("=")[0] for entry in found["Env"])

    def kill_from_outside(self, sandbox: Sandbox) -> None:
        node, container = container_of(self.cluster, sandbox.id)
        ctr = ("ctr", "--address", str(node.socket), "--namespace", "k8s.io")
        subprocess.run([*ctr, "tasks", "kill", "--signal", "SIGKILL", container], check=True)

    def remove_from_outside(self, sandbox: Sandbox) -> None:
        self.cluster.kubectl(
            "--namespace", NAMESPACE, "delete", "pod", "--now", "--wait=false", sandbox.id
        )


def container_of(cluster: Cluster, name: str) -> tuple[Node, str]:
    (pod,) = [found for found in pods(cluster) if found["metadata"]["name"] == name]
    (node,) = [node for node in cluster.nodes if node.name == pod["spec"]["nodeName"]]
    (status,) = pod["status"]["containerStatuses"]
    return node, str(status["containerID"]).rpartition("/")[2]


def environment(kubeconfig: Path) -> Mapping[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "CANARY_TOKEN": "x"}


def backend_on(kubeconfig: Path, **changed: object) -> KubernetesBackend:
    table = replace(TABLE, **changed)  # type: ignore[arg-type]  # the fields of the table
    return KubernetesBackend(table, image=table.image, environ=environment(kubeconfig))


def engine_on(cluster: Cluster, kubeconfig: Path) -> ClusterEngine:
    return ClusterEngine(
        name="kubernetes",
        environ=environment(kubeconfig),
        image=RUNTIME_IMAGE,
        open_backend=lambda: backend_on(kubeconfig),
        cluster=cluster,
    )


__all__ = ["ClusterEngine", "backend_on", "container_of", "engine_on", "pod_names"]
