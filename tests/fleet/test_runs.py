"""Whole runs on a cluster that fails: what the client is told, and that nothing is made twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from bridge.model import RunRequest, RunResult
from bridge.runs import Engine, open_engine
from scripts.fleet.cluster import Cluster, Node
from tests.engine_rig import ListFinder, workshop
from tests.fleet.rig import NAMESPACE, pod_names, pods, settings_in, wait_until
from tests.fleet.test_failures import quota
from tests.waiting import until, until_exists


@pytest.fixture
async def engine(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = settings_in(tmp_path, kubeconfig, warm=0)
    async with open_engine(settings, finder=ListFinder(workshop())) as opened:
        yield opened
    wait_until(lambda: pod_names(cluster) == [], "no pod is left")


@contextmanager
def killed(cluster: Cluster, node: Node) -> Iterator[None]:
    cluster.kill(f"kubelet-{node.name}")
    try:
        yield
    finally:
        cluster.start_kubelet(node)


@contextmanager
def stopped(cluster: Cluster, node: Node) -> Iterator[None]:
    """Stop a node's kubelet: no connection breaks, and nothing answers."""
    cluster.pause(f"kubelet-{node.name}")
    try:
        yield
    finally:
        cluster.resume(f"kubelet-{node.name}")


@contextmanager
def deleted(cluster: Cluster, _: Node) -> Iterator[None]:
    cluster.kubectl("--namespace", NAMESPACE, "delete", "pods", "--all", "--wait=false")
    yield


@contextmanager
def drained(cluster: Cluster, node: Node) -> Iterator[None]:
    cluster.kubectl("drain", node.name, "--force", "--delete-emptydir-data")
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node.name)


@pytest.mark.parametrize(
    ("failure", "words"),
    [(killed, ""), (stopped, "its node|(deleted)"), (deleted, "(deleted)"), (drained, "(deleted)")],
)
async def test_a_run_whose_node_falls_silent_ends_as_lost_and_is_not_made_again(
    cluster: Cluster,
    engine: Engine,
    tmp_path: Path,
    failure: Callable[[Cluster, Node], AbstractContextManager[None]],
    words: str,
) -> None:
    """The call that went out counts. A silent node's pod is unreachable, and later evicted."""
    called, ended = tmp_path / "called", list[RunResult]()
    arguments = f"started={str(called)!r}, cancelled={str(tmp_path / 'cancelled')!r}"
    request = RunRequest(code=f"await mcp_work_shop.slow({arguments})", timeout=100)

    async def run() -> None:
        ended.append(await engine.run(request))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until_exists(called)
        (pod,) = pods(cluster)
        node = next(n for n in cluster.nodes if n.name == pod["spec"]["nodeName"])
        with failure(cluster, node):
            await until(lambda: bool(ended))
    (result,) = ended
    assert (result.status, result.reason, result.code) == ("error", "engine", "sandbox_lost")
    assert any(word in result.error for word in words.split("|")), result.error
    assert result.receipt is not None
    assert result.receipt.calls == {"work-shop": 1}


@pytest.mark.parametrize(("pods", "count"), [("3", 12), ("100", 100)])
async def test_runs_wait_for_the_quota_and_the_nodes_and_all_succeed(
    cluster: Cluster, engine: Engine, pods: str, count: int
) -> None:
    results = []

    async def run(number: int) -> None:
        results.append((await engine.run(RunRequest(code=str(number)))).result)

    with quota(cluster, pods=pods):
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(run, number)
        assert engine.sandboxes.capacity == int(pods)
    assert set(results) == set(range(count))
