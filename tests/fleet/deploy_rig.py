"""The overlays of `deploy/` as an administrator applies them to the test cluster, and clients."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from scripts.fleet.cluster import Cluster
from scripts.fleet.deployed import BRIDGE_IMAGE, GATEWAY_IMAGE, write_images
from scripts.fleet.running import RUNTIME_IMAGE, prepared
from tests.e2e.rig import document_of
from tests.fleet.rig import AS_OF_1_20, BRIDGE, DEPLOY, NAMESPACE, pods, wait_until

KEEPER = Path(__file__).parents[1] / "fakes" / "servers" / "keeper.py"
HOST = "192.0.2.1"
"""This process, as pods reach it."""

TOKEN = "0123456789abcdef" * 4
OTHER_TOKEN = "fedcba9876543210" * 4
PATIENCE = 180.0
STAYS = ("Namespace", "ServiceAccount", "Role", "RoleBinding")
"""What other tests need too."""

CONFIG = f"""
project_servers = "none"
[kubernetes]
namespace = "{NAMESPACE}"
image = "{RUNTIME_IMAGE}"
warm = 1
requests = {{ cpu = "10m" }}
[policy.defaults]
write = "allow"
destructive = "allow"
untrusted = "allow"
"""

SERVERS = {
    "keeper": {"command": "python3", "args": ["/etc/mcp-code-bridge/keeper.py", "/tmp/kept"]}
}


def _image(name: str, there: str) -> dict[str, str]:
    new, _, tag = there.rpartition(":")
    return {"name": name, "newName": new, "newTag": tag}


KUSTOMIZATION = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "namespace": NAMESPACE,
    "images": [
        _image("mcp-code-bridge", BRIDGE_IMAGE),
        _image("docker.io/nginxinc/nginx-unprivileged", GATEWAY_IMAGE),
    ],
    "configMapGenerator": [
        {
            "name": "mcp-code-bridge",
            "namespace": NAMESPACE,
            "behavior": "merge",
            "files": ["config.toml", "servers.json", "keeper.py"],
        }
    ],
}
"""What README.md of `deploy/` has an administrator write, but for the overlay's name."""


@dataclass
class Deployed:
    cluster: Cluster

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *words, stdin=stdin)

    def bridges(self) -> list[dict[str, Any]]:
        found = (pod for pod in pods(self.cluster) if _is_bridge(pod))
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def sandboxes(self) -> list[dict[str, Any]]:
        return [pod for pod in pods(self.cluster) if not _is_bridge(pod)]

    def addresses(self) -> list[str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/endpoints/{BRIDGE}"
        subsets = json.loads(self.cluster.request("GET", path)).get("subsets", ())
        return [str(one["ip"]) for each in subsets for one in each.get("addresses", ())]

    def until_ready(self, count: int) -> list[str]:
        def so_many() -> bool:
            return len(self.addresses()) == count == len(self.bridges())

        wait_until(so_many, f"{count} are ready", PATIENCE)
        return self.addresses()


def _is_bridge(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"].get("app.kubernetes.io/component") == "bridge")


def _objects(
    cluster: Cluster, overlay: str, directory: Path, settings: str
) -> list[dict[str, Any]]:
    shutil.copytree(DEPLOY, directory / "deploy")
    own = directory / "deploy" / "mine"
    own.mkdir()
    made = {**KUSTOMIZATION, "bases": [f"../overlays/{overlay}"]}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(made))
    (own / "config.toml").write_text(f"{settings}\n{CONFIG}")
    (own / "servers.json").write_text(json.dumps({"mcpServers": SERVERS}))
    shutil.copy(KEEPER, own)
    found = [*yaml.safe_load_all(cluster.kubectl("kustomize", own))]
    return [
        {**each, "apiVersion": AS_OF_1_20.get(each["apiVersion"], each["apiVersion"])}
        for each in found
    ]


def give_images(cluster: Cluster) -> None:
    layers = (Path(path) for path in os.environ["MCP_FLEET_DEPLOYED"].split())
    archives = write_images(prepared("MCP_FLEET_DIRECTORY"), *layers)
    for node in cluster.nodes:
        cluster.import_images(node, archives)
    for archive in archives:
        archive.unlink()


VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: state}
spec:
  capacity: {storage: 10Gi}
  accessModes: [%s]
  local: {path: %s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]
"""


@contextmanager
def applied(
    cluster: Cluster, overlay: str, directory: Path, *, settings: str = "", store: str = ""
) -> Iterator[Deployed]:
    """Apply an overlay for as long as the context lasts; nothing of it stays.

    Args:
        settings: Lines before `CONFIG`.
        store: The address in the secret of the overlay `replicated`.
    """
    deployed = Deployed(cluster)
    objects = _objects(cluster, overlay, directory, settings)
    secrets = {
        "gateway-clients": {"alice": TOKEN, "bob": OTHER_TOKEN},
        "mcp-code-bridge-store": {"url": store},
    }
    for name, said in secrets.items():
        words = (f"--from-literal={key}={text}" for key, text in said.items())
        deployed.kubectl("create", "secret", "generic", name, *words)
    try:
        deployed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        yield deployed
    finally:
        gone = yaml.safe_dump_all([each for each in objects if each["kind"] not in STAYS])
        deployed.kubectl("delete", "--wait=false", "-f", "-", stdin=gone)
        deployed.kubectl("delete", "secret", *secrets)
        wait_until(lambda: not pods(cluster), "no pod is left", PATIENCE)


@asynccontextmanager
async def client_of(address: str, token: str = TOKEN) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http_client(f"http://{address}:8080/mcp", http_client=http)
        async with Client(transport) as client:
            yield client


async def run(client: Client, code: str, **more: Any) -> dict[str, Any]:
    arguments = {"code": code, "servers": ["keeper"], **more}
    record = document_of(await client.call_tool("run_python", arguments))
    assert record["status"] == "success", record
    return record


async def value(client: Client, code: str, **more: Any) -> Any:
    return (await run(client, code, **more)).get("result")


@contextmanager
def forwarded(port: int) -> Iterator[int]:
    """Forward connections of pods to a port of this machine's loopback; give theirs."""
    listener = socket.create_server((HOST, 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=both, args=(near, far), daemon=True).start()

    def both(near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = threading.Thread(target=pump, args=(far, near), daemon=True)
            back.start()
            pump(near, far)
            back.join()

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
