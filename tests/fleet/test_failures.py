"""How a cluster fails, and what becomes of the sandbox: each row of docs/kubernetes.md's table.

Each failure is done to the real servers. What follows has a code of its own, comes in bounded time,
and leaves no pod.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bridge.errors import BridgeError, SandboxLostError
from bridge.sandbox.backend import Sandbox
from scripts.fleet.cluster import Cluster, Node
from tests.contract.programs import BUSY, ECHO, FOREVER, read_exactly, spec
from tests.fleet.engine import backend_on
from tests.fleet.rig import NAMESPACE, pod_names, pods, wait_until
from tests.raised import raises_code
from tests.sandbox.process.rig import read_all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    wait_until(lambda: pod_names(cluster) == [], "no pod is left")


@asynccontextmanager
async def running(
    kubeconfig: Path, program: str = FOREVER, **settings: Any
) -> AsyncIterator[Sandbox]:
    async with (
        backend_on(kubeconfig, **settings) as backend,
        backend.launch(spec(program)) as sandbox,
    ):
        assert await read_exactly(sandbox, 6) == b"ready\n"
        yield sandbox


def node_of(cluster: Cluster, sandbox: Sandbox) -> Node:
    (name,) = [
        pod["spec"]["nodeName"] for pod in pods(cluster) if pod["metadata"]["name"] == sandbox.id
    ]
    return next(node for node in cluster.nodes if node.name == name)


async def off_loop(call: Callable[..., object], *arguments: object) -> None:
    await anyio.to_thread.run_sync(call, *arguments)


async def launch_fails(kubeconfig: Path, **settings: Any) -> BridgeError:
    async with backend_on(kubeconfig, **settings) as backend:
        with pytest.raises(BridgeError) as caught:
            async with backend.launch(spec(ECHO)):
                pass
    return caught.value


@pytest.mark.parametrize("program", [FOREVER, BUSY], ids=["asleep", "busy"])
async def test_a_pod_past_its_deadline_is_told_as_that(
    cluster: Cluster, kubeconfig: Path, program: str
) -> None:
    async with running(kubeconfig, program) as sandbox:
        shorter = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
        patch = ("--namespace", NAMESPACE, "patch", "pod", sandbox.id, "--patch", shorter)
        await off_loop(cluster.kubectl, *patch)
        with raises_code("pod_deadline"):
            await read_all(sandbox)


async def test_a_killed_kubelet_ends_the_stream_at_once_and_later_runs_go_elsewhere(
    cluster: Cluster, kubeconfig: Path
) -> None:
    async with running(kubeconfig) as sandbox:
        node = node_of(cluster, sandbox)
        cluster.kill(f"kubelet-{node.name}")
        try:
            with pytest.raises(SandboxLostError):
                await read_all(sandbox)
            await off_loop(cluster.wait_for_nodes, len(cluster.nodes) - 1)
            async with running(kubeconfig) as other:
                assert node_of(cluster, other) != node
        finally:
            await off_loop(cluster.start_kubelet, node)
            await off_loop(cluster.wait_for_nodes, len(cluster.nodes))


async def test_a_node_that_is_gone_leaves_no_pod_once_it_is_back(
    cluster: Cluster, kubeconfig: Path
) -> None:
    async with running(kubeconfig, BUSY) as sandbox:
        node = node_of(cluster, sandbox)
        cluster.kill(f"kubelet-{node.name}")
        cluster.kill(f"containerd-{node.name}")
        try:
            with pytest.raises(SandboxLostError):
                await read_all(sandbox)
        finally:
            await off_loop(cluster.start_containerd, node)
            await off_loop(cluster.start_kubelet, node)
            await off_loop(cluster.wait_for_nodes, len(cluster.nodes))


async def test_an_api_server_that_is_restarted_ends_streams_and_serves_the_same_backend_again(
    cluster: Cluster, kubeconfig: Path
) -> None:
    async with backend_on(kubeconfig) as backend:
        async with backend.launch(spec(FOREVER)) as sandbox:
            assert await read_exactly(sandbox, 6) == b"ready\n"
            cluster.kill("kube-apiserver")
            try:
                with pytest.raises(SandboxLostError):
                    await read_all(sandbox)
                with raises_code("cluster_down"):
                    async with backend.launch(spec(ECHO)):
                        pass
            finally:
                await off_loop(cluster.start_api_server)
        async with backend.launch(spec(ECHO)) as again:
            await again.send(b"x")
            assert await again.receive() == b"x"


async def test_an_account_without_rights_is_refused_with_what_it_needs(cluster: Cluster) -> None:
    error = await launch_fails(cluster.service_account_kubeconfig(NAMESPACE, "default"))
    assert error.code == "cluster_refused"
    assert "pods/attach" in error.remedy


@contextmanager
def quota(cluster: Cluster, **hard: str) -> Iterator[None]:
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    metadata = {"name": "tight", "namespace": NAMESPACE}
    wanted = {"metadata": metadata, "spec": {"scopes": ["Terminating"], "hard": hard}}
    cluster.request("POST", path, {"apiVersion": "v1", "kind": "ResourceQuota", **wanted})

    def is_in_force() -> bool:
        status = json.loads(cluster.request("GET", f"{path}/tight")).get("status", {})
        return bool(status.get("hard") == hard)

    try:
        wait_until(is_in_force, "the quota is in force")
        yield
    finally:
        cluster.request("DELETE", f"{path}/tight")


async def test_a_quota_that_is_used_up_is_told_as_that(cluster: Cluster, kubeconfig: Path) -> None:
    with quota(cluster, pods="0"):
        assert (await launch_fails(kubeconfig, room_seconds=1.0)).code == "quota"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"image": "localhost/no-such-image:1"}, "image_missing"),
        ({"image": "127.0.0.1:1/none:1", "pull_policy": "IfNotPresent"}, "image_pull_failed"),
        ({"requests": {"cpu": "1000"}, "room_seconds": 1.0}, "no_room"),
        ({"node_selector": {"disk": "golden"}, "room_seconds": 1.0}, "no_room"),
    ],
    ids=["image", "pull", "size", "label"],
)
async def test_a_pod_that_no_node_can_start_is_told_as_that(
    kubeconfig: Path, settings: dict[str, Any], code: str
) -> None:
    assert (await launch_fails(kubeconfig, **settings)).code == code


async def test_a_runtime_class_reaches_the_node(cluster: Cluster, kubeconfig: Path) -> None:
    made = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "second"},
        "handler": "second",
    }
    cluster.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", made)
    async with running(kubeconfig, runtime_class="second") as sandbox:
        (pod,) = pods(cluster)
        assert pod["spec"]["runtimeClassName"] == "second"
        await sandbox.kill()
    error = await launch_fails(kubeconfig, runtime_class="no-such-class")
    assert "no-such-class" in str(error)


DYING = """
import anyio, os, sys
from pathlib import Path
from tests.contract.programs import BUSY, FOREVER, spec
from tests.fleet.engine import backend_on

async def main():
    async with backend_on(Path(sys.argv[1])) as backend:
        async with backend.launch(spec(FOREVER)), backend.launch(spec(BUSY)):
            await backend.reap()
            print("two run", flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@contextmanager
def other_bridge(kubeconfig: Path) -> Iterator[None]:
    argv = [sys.executable, "-c", DYING, str(kubeconfig)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as dying:
        assert dying.stdout is not None
        try:
            assert dying.stdout.readline() == b"two run\n"
            yield
        finally:
            dying.kill()


async def test_a_bridge_that_is_killed_leaves_no_pod_after_the_sweep_of_another(
    cluster: Cluster, kubeconfig: Path
) -> None:
    with other_bridge(kubeconfig):
        assert len(pods(cluster)) == 2
    async with backend_on(kubeconfig) as backend:
        assert await backend.reap() == 0
        while pods(cluster):
            await backend.reap()
            await anyio.sleep(1)
