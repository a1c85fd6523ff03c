"""What the tests on a real cluster share: the namespace that `deploy/` makes, and its pods."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bridge.settings import Settings, load
from scripts.fleet.cluster import Cluster
from scripts.fleet.running import RUNTIME_IMAGE

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CANARY = "canary-in-the-hosts-environment"
NAMESPACE = "mcp-code-bridge"
BRIDGE = "mcp-code-bridge"
"""The bridge's service account."""

CONFIG = f"""
runtime = "kubernetes"
[kubernetes]
namespace = "{NAMESPACE}"
image = "{RUNTIME_IMAGE}"
pull_policy = "Never"
"""
"""The settings of a bridge on the cluster."""

PATIENCE = 60.0
"""For what a cluster does in a second or in twenty, on a machine that does other things too."""

AS_OF_1_20 = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}
"""The versions that the test cluster has of what later ones have under a new name, unchanged."""


def prepare_namespace(cluster: Cluster) -> None:
    for name in ("namespace.yaml", "rbac.yaml"):
        cluster.kubectl("apply", "-f", DEPLOY / "base" / name)
    # Pods are refused until a controller has made the namespace's default account.
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    wait_until(lambda: _is_there(cluster, path), "the namespace has its default account")


def settings_in(
    home: Path, kubeconfig: Path, *, warm: int = 0, waiting: int = 0, **flags: str
) -> Settings:
    """Return the settings of a bridge on the cluster, with nothing of this machine's user.

    `warm` sandboxes wait attached, and `waiting` pods wait for any bridge of the service.
    """
    home.mkdir(parents=True, exist_ok=True)
    config = home / "config.toml"
    config.write_text(f"{CONFIG}warm = {waiting}\n")
    environ = {
        **os.environ,
        "CANARY_TOKEN": CANARY,
        "HOME": str(home),
        "KUBECONFIG": str(kubeconfig),
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        # A record of a run would be taken for something that the run left behind.
        "MCP_BRIDGE_RUN_RECORDS": "off",
    }
    return load({"warm": str(warm), **flags}, environ)


def _is_there(cluster: Cluster, path: str) -> bool:
    try:
        cluster.request("GET", path)
    except OSError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"in {seconds:.0f} s it did not become true that {what}"
        time.sleep(0.1)


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    return list(json.loads(cluster.request("GET", path))["items"])


def pod_names(cluster: Cluster) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in pods(cluster)]


def built(cluster: Cluster, overlay: str) -> list[dict[str, Any]]:
    text = cluster.kubectl("kustomize", DEPLOY / "overlays" / overlay)
    return [*yaml.safe_load_all(text)]


OVERLAYS = tuple(sorted(path.name for path in (DEPLOY / "overlays").iterdir()))
