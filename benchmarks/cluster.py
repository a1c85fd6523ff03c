"""What runs on Kubernetes take, measured on the test cluster.

make bench-fleet
scripts/fleet/run .venv/bin/python -m benchmarks.cluster waits      (rows with that in their names)

One machine plays both nodes and the control plane, so that rates are those of its processors, and
latencies those of a cluster without a network between.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.model import RunRequest
from bridge.runs import Engine, open_engine
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from scripts.fleet.cluster import Cluster
from scripts.fleet.running import running_cluster
from tests.contract.programs import ECHO, spec
from tests.engine_rig import ListFinder
from tests.fleet.engine import backend_on
from tests.fleet.rig import BRIDGE, NAMESPACE, pods, prepare_namespace, settings_in, wait_until

ROUNDS = 20
CALLS = 500
AT_ONCE = 8
WAITING = 4
RUNS = 60
STREAMS = 50


def summary(seconds: list[float]) -> str:
    """Return median and 95th percentile in milliseconds."""
    ordered = sorted(seconds)
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    return f"p50 {middle * 1000:.1f} ms, p95 {late * 1000:.1f} ms"


async def timed(
    what: Callable[[], Awaitable[object]],
    rounds: int = ROUNDS,
    *,
    is_ready: Callable[[], bool] | None = None,
) -> list[float]:
    """Return how long each of some rounds took, after one that is not counted.

    Args:
        is_ready: Waited for before each round, which is not counted.
    """
    await what()
    taken = []
    for _ in range(rounds):
        while is_ready is not None and not is_ready():  # noqa: ASYNC110 - nothing announces it
            await anyio.sleep(0.05)
        begun = time.perf_counter()
        await what()
        taken.append(time.perf_counter() - begun)
    return taken


@asynccontextmanager
async def bridge(kubeconfig: Path, *, warm: int = 0, waiting: int = 0) -> AsyncIterator[Engine]:
    """Open an engine on the cluster."""
    with tempfile.TemporaryDirectory() as home:
        settings = settings_in(Path(home), kubeconfig, warm=warm, waiting=waiting, memory="128m")
        async with open_engine(settings, finder=ListFinder()) as engine:
            yield engine


async def run(engine: Engine) -> None:
    """Make one run of `1+1`."""
    found = await engine.run(RunRequest(code="1+1", servers=()))
    assert found.result == 2, found


def pods_wait(cluster: Cluster) -> bool:
    """Tell whether as many pods run as are to wait, and no others."""
    phases = [pod["status"].get("phase") for pod in pods(cluster)]
    return phases == ["Running"] * WAITING


async def bare_pods(cluster: Cluster) -> str:
    """Return how long it takes until a plain pod runs, as a client that watches sees it."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "p", "image": "localhost/fleet-pause:1", "imagePullPolicy": "Never"}
            ],
        },
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def start(number: int) -> None:
        name = f"bare-{number}"
        cluster.request("POST", path, {**document, "metadata": {"name": name}})
        wait_until(
            lambda: (
                json.loads(cluster.request("GET", f"{path}/{name}"))["status"]["phase"] == "Running"
            ),
            f"{name} runs",
            every=0.01,
        )
        cluster.request("DELETE", f"{path}/{name}")

    numbers = iter(range(ROUNDS + 1))
    return summary(await timed(lambda: anyio.to_thread.run_sync(start, next(numbers))))


async def round_trips(backend: KubernetesBackend) -> str:
    """Return how long a message takes to a program and back."""
    async with backend.launch(spec(ECHO)) as sandbox:

        async def there_and_back() -> None:
            await sandbox.send(b"x" * 100)
            received = 0
            while received < 100:
                received += len(await sandbox.receive())

        return summary(await timed(there_and_back, CALLS))


async def rate(kubeconfig: Path) -> str:
    """Return runs a second, some at once, each in a fresh pod."""
    async with bridge(kubeconfig) as engine:
        await run(engine)
        left = iter(range(RUNS))

        async def work() -> None:
            for _ in left:
                await run(engine)

        begun = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(work)
        return f"{RUNS / (time.perf_counter() - begun):.1f} a second, {AT_ONCE} at once"


async def memory(backend: KubernetesBackend) -> str:
    """Return how much a process with many open streams holds."""

    def resident() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    before = resident()
    async with AsyncExitStack() as stack:
        for _ in range(STREAMS):
            await stack.enter_async_context(backend.launch(spec(ECHO)))
        after = resident()
    return f"{after:.0f} MiB, {after - before:.1f} more than without"


async def cold(kubeconfig: Path) -> str:
    """Return how long a run takes where nothing waits."""
    async with bridge(kubeconfig) as engine:
        return summary(await timed(lambda: run(engine)))


async def pod_waits(cluster: Cluster, kubeconfig: Path) -> str:
    """Return how long a run takes that claims a pod which waits."""
    async with bridge(kubeconfig, waiting=WAITING) as engine:
        ready = partial(pods_wait, cluster)
        return summary(await timed(lambda: run(engine), is_ready=ready))


async def sandbox_waits(kubeconfig: Path) -> str:
    """Return how long a run takes that gets a sandbox which waits, attached."""
    async with bridge(kubeconfig, warm=WAITING) as engine:
        sandboxes = engine.sandboxes

        def ready() -> bool:
            return sandboxes.report.waiting > 0

        return summary(await timed(lambda: run(engine), is_ready=ready))


async def on_a_backend(
    kubeconfig: Path, what: Callable[[KubernetesBackend], Awaitable[str]]
) -> str:
    """Measure something on a backend of its own."""
    async with backend_on(kubeconfig) as backend:
        return await what(backend)


async def on_one_node(cluster: Cluster, kubeconfig: Path) -> str:
    """Return runs a second while the other node takes none."""
    await anyio.to_thread.run_sync(cluster.kubectl, "cordon", cluster.nodes[1].name)
    try:
        return await rate(kubeconfig)
    finally:
        await anyio.to_thread.run_sync(cluster.kubectl, "uncordon", cluster.nodes[1].name)


def rows(cluster: Cluster, kubeconfig: Path) -> dict[str, Callable[[], Awaitable[str]]]:
    """Return what each row is called, and what measures it."""
    return {
        "a bare pod, created until it runs": partial(bare_pods, cluster),
        "run of `1+1`, nothing waits": partial(cold, kubeconfig),
        "run of `1+1`, a pod waits": partial(pod_waits, cluster, kubeconfig),
        "run of `1+1`, a sandbox waits": partial(sandbox_waits, kubeconfig),
        "a message to a program and back": partial(on_a_backend, kubeconfig, round_trips),
        f"the bridge with {STREAMS} streams open": partial(on_a_backend, kubeconfig, memory),
        "runs on two nodes": partial(rate, kubeconfig),
        "runs on one node": partial(on_one_node, cluster, kubeconfig),
    }


async def measure(only: str) -> None:
    """Start the cluster, measure, and print the rows that have a text in their names."""
    with running_cluster() as cluster:
        prepare_namespace(cluster)
        kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, BRIDGE)
        for name, found in rows(cluster, kubeconfig).items():
            if only in name:
                print(f"{name:36} {await found()}", flush=True)


if __name__ == "__main__":
    anyio.run(measure, sys.argv[1] if len(sys.argv) > 1 else "")
