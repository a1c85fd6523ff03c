"""The test cluster itself: what the other tests of this directory rely on."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from scripts.fleet.cluster import Cluster
from scripts.fleet.running import RUNTIME_IMAGE, prepared
from tests.fleet.rig import BRIDGE, NAMESPACE, pods, wait_until

PROGRAM = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"


def hardened_pod(name: str, node: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that answers each line in capitals, on one node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "echo",
                    "image": RUNTIME_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-c", PROGRAM],
                    "stdin": True,
                    "stdinOnce": True,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65534,
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
            **spec,
        },
    }


def phase(cluster: Cluster, name: str) -> str:
    """Return how far a pod is; empty if there is none."""
    found = [pod for pod in pods(cluster) if pod["metadata"]["name"] == name]
    return str(found[0]["status"].get("phase", "")) if found else ""


def test_a_hardened_pod_answers_on_each_node_through_its_stream(cluster: Cluster) -> None:
    """Both nodes run the image under the namespace's standard, and attaching reaches them."""
    for number, node in enumerate(cluster.nodes):
        name = f"echo-{number}"
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(hardened_pod(name, node.name)))
        wait_until(lambda name=name: phase(cluster, name) == "Running", f"{name} runs")  # type: ignore[misc]
        command = ("--namespace", NAMESPACE, "attach", "--stdin", name)
        assert cluster.kubectl(*command, stdin="over\nand out\n") == "OVER\nAND OUT\n"
        # Its input has ended with the client.
        wait_until(lambda name=name: phase(cluster, name) == "Succeeded", f"{name} ends")  # type: ignore[misc]
        cluster.kubectl("--namespace", NAMESPACE, "delete", "pod", name)


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        *((verb, "pods", True) for verb in ("create", "get", "list", "patch", "delete")),
        ("get", "pods/attach", True),
        ("create", "pods/attach", True),
        *(
            (verb, "leases.coordination.k8s.io", True)
            for verb in ("create", "get", "list", "patch", "delete")
        ),
        ("update", "pods", False),
        ("deletecollection", "pods", False),
        ("create", "pods/exec", False),
        ("get", "pods/log", False),
        ("create", "pods/portforward", False),
        ("create", "pods/eviction", False),
        ("get", "secrets", False),
        ("get", "configmaps", False),
        ("watch", "pods", False),
        ("create", "serviceaccounts/token", False),
        ("create", "deployments.apps", False),
        ("patch", "roles.rbac.authorization.k8s.io", False),
    ],
)
def test_the_bridges_account_has_the_rights_that_it_needs_and_no_other(
    cluster: Cluster, verb: str, resource: str, allowed: bool
) -> None:
    """The server's own authoriser says so, for the account of deploy/."""
    name, _, part = resource.partition("/")
    kind, _, group = name.partition(".")
    account = f"system:serviceaccount:{NAMESPACE}:{BRIDGE}"
    attributes = {"verb": verb, "resource": kind, "group": group, "subresource": part}
    for namespace, expected in ((NAMESPACE, allowed), ("default", False)):
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {**attributes, "namespace": namespace},
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = json.loads(cluster.request("POST", path, review))
        assert answer["status"]["allowed"] is expected, namespace


def test_the_account_reaches_the_cluster_with_its_own_token(
    cluster: Cluster, kubeconfig: object
) -> None:
    """What the bridge is given works, and only for what it may do."""
    kubectl = [str(prepared("MCP_FLEET_PROGRAMS") / "kubectl"), f"--kubeconfig={kubeconfig}"]
    listed = subprocess.run(
        [*kubectl, "get", "pods", "--output=jsonpath={.kind}"], check=True, capture_output=True
    )
    assert listed.stdout == b"List"
    refused = subprocess.run([*kubectl, "get", "secrets"], check=False, capture_output=True)
    assert b"Forbidden" in refused.stderr
