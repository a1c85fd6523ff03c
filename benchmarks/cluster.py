"""Kubernetes as an engine, on the test cluster: its bare pods and streams, without the bridge.

Works inside `scripts/fleet/run`. One machine plays both nodes and the control plane, so rates are
those of its processors, and latencies those of a cluster without a network between.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.engines import Engine
from scripts.fleet.cluster import PAUSE_IMAGE, Cluster
from scripts.fleet.running import RUNTIME_IMAGE, prepared, running_cluster
from tests.fleet.rig import BRIDGE, CONFIG, NAMESPACE, pods, prepare_namespace

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WAITING = 4
"""Pods that wait, where a run is to find one."""

POD_SECONDS = 60.0
"""For a pod to run, on a machine that does other things too."""

PACE_SECONDS = 2.0
"""A pod starts in one when nothing else does."""


@dataclass(frozen=True, kw_only=True)
class ClusterEngine(Engine):
    """The test cluster in an engine's place.

    Attributes:
        kubeconfig: Of the account that `deploy/` makes for the bridge.
        config: The bridge's settings file.
    """

    cluster: Cluster
    kubeconfig: Path
    config: Path

    @property
    def environ(self) -> Mapping[str, str]:
        """What the bridge has to be told to use it."""
        return {
            "MCP_BRIDGE_RUNTIME": self.name,
            "MCP_BRIDGE_CONFIG": str(self.config),
            "KUBECONFIG": str(self.kubeconfig),
        }

    def run_once(self) -> float:
        """Create a bare pod and return the milliseconds until who watches sees it running."""
        name, taken = self._start_pod({"image": PAUSE_IMAGE})
        self._delete(name)
        return taken

    @asynccontextmanager
    async def bare_stream(self, argv: Sequence[str]) -> AsyncIterator[ClientConnection]:
        """Attach to a program in a bare pod; messages begin with their channel's number."""
        container = {"image": RUNTIME_IMAGE, "command": [*argv], "stdin": True}
        name, _ = await anyio.to_thread.run_sync(self._start_pod, container)
        server, authorization, context = self._admin()
        try:
            async with connect(
                f"ws{server.removeprefix('http')}{PODS}/{name}/attach?stdin=1&stdout=1",
                ssl=context,
                subprotocols=["v4.channel.k8s.io"],  # type: ignore[list-item]  # a NewType of str
                additional_headers=authorization,
                compression=None,
            ) as stream:
                yield stream
        finally:
            await anyio.to_thread.run_sync(self._delete, name)

    @contextmanager
    def one_node(self) -> Iterator[None]:
        """Let only one node take pods."""
        for node in self.cluster.nodes[1:]:
            self.cluster.kubectl("cordon", node.name)
        try:
            yield
        finally:
            for node in self.cluster.nodes[1:]:
                self.cluster.kubectl("uncordon", node.name)

    def with_waiting_pods(self) -> ClusterEngine:
        """Return it with settings by which pods wait, for any bridge."""
        config = self.config.with_name("waiting.toml")
        config.write_text(f"{CONFIG}warm = {WAITING}\n")
        return replace(self, config=config)

    def running(self) -> int | None:
        """Return how many pods run; nothing while others come or go."""
        phases = [
            "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase")
            for pod in pods(self.cluster)
        ]
        return len(phases) if {*phases} <= {"Running"} else None

    def _start_pod(self, container: Mapping[str, Any]) -> tuple[str, float]:
        name = f"bare-{uuid.uuid4().hex[:12]}"
        one = {"name": "c", "imagePullPolicy": "Never", **container}
        spec = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [one]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        watched = {"watch": "1", "fieldSelector": f"metadata.name={name}"}
        with self._api() as api, api.stream("GET", PODS, params=watched) as events:
            started = time.perf_counter()
            api.post(PODS, json=pod).raise_for_status()
            for line in events.iter_lines():
                if json.loads(line)["object"]["status"].get("phase") == "Running":
                    break
            return name, (time.perf_counter() - started) * 1000

    def _delete(self, name: str) -> None:
        with self._api() as api:
            api.delete(f"{PODS}/{name}").raise_for_status()

    def _api(self) -> httpx2.Client:
        server, authorization, context = self._admin()
        return httpx2.Client(
            base_url=server, headers=authorization, verify=context, timeout=POD_SECONDS
        )

    def _admin(self) -> tuple[str, Mapping[str, str], ssl.SSLContext]:
        """Return where the API server is, and what it asks for."""
        config = json.loads(self.cluster.admin.read_text())
        found = config["clusters"][0]["cluster"]
        authority = base64.b64decode(found["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        token = config["users"][0]["user"]["token"]
        return found["server"], {"Authorization": f"Bearer {token}"}, context


@contextmanager
def cluster_engine(directory: Path) -> Iterator[ClusterEngine]:
    """Start the test cluster, and give it as an engine."""
    with running_cluster() as cluster:
        prepare_namespace(cluster)
        config = directory / "config.toml"
        config.write_text(CONFIG)
        # They say of themselves that they are a development state.
        version = prepared("MCP_FLEET_PROGRAMS").name.split("-")[1]
        yield ClusterEngine(
            name="kubernetes",
            version=version,
            run=(),
            pace_seconds=PACE_SECONDS,
            cluster=cluster,
            kubeconfig=cluster.service_account_kubeconfig(NAMESPACE, BRIDGE),
            config=config,
        )
