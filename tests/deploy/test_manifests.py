"""The manifests of deploy/, as files: what holds of them wherever they are applied."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.model import Limits
from bridge.sandbox.kubernetes.pod import Template
from bridge.settings import load
from bridge.settings.kubernetes import Kubernetes
from tests.deploy.pod_security import violations

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BRIDGE = {
    "app.kubernetes.io/name": "mcp-code-bridge",
    "app.kubernetes.io/component": "bridge",
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def one(kind: str, path: str) -> dict[str, Any]:
    (found,) = [d for d in documents(DEPLOY / "base" / path) if d["kind"] == kind]
    return found


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("kustomization.yaml")), ids=str)
def test_a_kustomization_names_files_that_exist_and_forgets_none(path: Path) -> None:
    """A file that nothing names is applied by no one."""
    (made,) = documents(path)
    for base in made.get("bases", ()):
        assert (path.parent / base / "kustomization.yaml").is_file()
    named = {*made.get("resources", ()), *made.get("patchesStrategicMerge", ())}
    named |= {file for each in made.get("configMapGenerator", ()) for file in each["files"]}
    assert named == {found.name for found in path.parent.iterdir()} - {path.name}


def test_every_object_is_in_the_one_namespace() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        for found in documents(path):
            if found["kind"] not in ("Kustomization", "Namespace", "RuntimeClass"):
                assert found["metadata"]["namespace"] == "mcp-code-bridge", path


def test_the_bridges_pod_keeps_to_the_restricted_standard() -> None:
    """The namespace enforces it, and would refuse the pod."""
    labels = one("Namespace", "namespace.yaml")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert violations(one("Deployment", "deployment.yaml")["spec"]["template"]["spec"]) == []


def test_the_role_has_what_the_bridge_uses_and_no_more() -> None:
    """No wildcard, no secrets, no exec, no logs; and only within the namespace."""
    role = one("Role", "rbac.yaml")
    assert {
        resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]
    } == {
        "pods": {"create", "get", "list", "patch", "delete"},
        "pods/attach": {"get", "create"},
        "leases": {"create", "get", "list", "patch", "delete"},
    }
    groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert groups == {"", "coordination.k8s.io"}
    binding = one("RoleBinding", "rbac.yaml")
    assert binding["roleRef"]["kind"] == "Role"
    assert [subject["name"] for subject in binding["subjects"]] == ["mcp-code-bridge"]


def test_no_pod_has_a_network_but_the_bridge() -> None:
    """One policy denies all pods both directions; the other opens the bridge's alone."""
    deny, bridge = documents(DEPLOY / "base" / "network-policy.yaml")
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert bridge["spec"]["podSelector"] == {"matchLabels": BRIDGE}
    template = one("Deployment", "deployment.yaml")["spec"]["template"]
    assert template["metadata"]["labels"] == BRIDGE


def test_the_quota_counts_sandboxes_and_not_the_bridge() -> None:
    """Its scope is pods with a deadline, which sandboxes have and the bridge's pod has not."""
    assert one("ResourceQuota", "quota.yaml")["spec"]["scopes"] == ["Terminating"]
    template = one("Deployment", "deployment.yaml")["spec"]["template"]
    assert "activeDeadlineSeconds" not in template["spec"]


def test_the_bridge_listens_where_only_its_gateway_reaches_it() -> None:
    """It knows no users of its own: what listens for the network asks for the token."""
    spec = one("Deployment", "deployment.yaml")["spec"]["template"]["spec"]
    bridge, gateway = spec["containers"]
    assert bridge["args"] == ["serve", "--http", "127.0.0.1:8765", "--no-token"]
    assert "ports" not in bridge
    assert [port["containerPort"] for port in gateway["ports"]] == [8080, 9090]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("config.toml")), ids=str)
def test_the_settings_of_the_manifests_are_settings(path: Path, tmp_path: Path) -> None:
    """The bridge reads the file that the manifests give it; its sandboxes fit the quota."""
    settings = load({}, {"MCP_BRIDGE_CONFIG": str(path), "HOME": str(tmp_path)})
    assert settings.kubernetes.namespace == "mcp-code-bridge"
    assert settings.kubernetes.requests["cpu"]
    assert "requests.cpu" in one("ResourceQuota", "quota.yaml")["spec"]["hard"]


def test_the_pods_that_the_bridge_makes_keep_to_the_restricted_standard() -> None:
    """The namespace that it makes them in would refuse them."""
    template = Template(settings=Kubernetes(), image="python:3.13-slim", owner="bridge")
    made = template.manifest("run-1", Limits(), "used")
    assert violations(made["spec"]) == []
    assert made["spec"]["automountServiceAccountToken"] is False
    assert made["spec"]["activeDeadlineSeconds"] >= Limits().longest_timeout


TOKENS = {
    "alice": "Zm9v.b4r-_~+/=",
    "bob": "zm9v.b4r-_~+/=\n",
    "carol": 'a" "root',
    "dave": "two words",
    "erin": "x.*",
    "empty": "",
}


def test_the_gateway_compares_tokens_exactly_and_says_whose_they_are(tmp_path: Path) -> None:
    """With regard to case, as a whole, and with no mark of an expression or of nginx's in them."""
    clients, run = tmp_path / "clients", tmp_path / "run"
    clients.mkdir()
    run.mkdir()
    for name, token in TOKENS.items():
        (clients / name).write_text(token)
    (gateway,) = (
        each
        for each in one("Deployment", "deployment.yaml")["spec"]["template"]["spec"]["containers"]
        if each["name"] == "gateway"
    )
    script = gateway["command"][2].replace("/etc/gateway-clients", str(clients))
    script = script.replace("/run/gateway", str(run)).partition("exec nginx")[0]
    made = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    lines = [shlex.split(line) for line in (run / "clients.conf").read_text().splitlines()]
    # nginx takes what follows "~" as an expression that regards case; shlex keeps its backslashes.
    found = {name[:-1]: expression[1:].replace("\\z", "\\Z") for expression, name in lines if name}
    assert found.keys() == {"alice", "bob"}
    assert "token of carol is not used" in made.stderr
    assert re.search(found["alice"], "Bearer Zm9v.b4r-_~+/=")
    assert re.search(found["bob"], "Bearer zm9v.b4r-_~+/=")
    for wrong in (TOKENS["bob"][:-1], "Zm9v.b4r-_~+/=x", "Zm9vxb4r-_~+/=", " Zm9v.b4r-_~+/=", ""):
        assert not re.search(found["alice"], f"Bearer {wrong}")
    for before in ("bearer ", "", "xBearer ", "Basic "):
        assert not re.search(found["alice"], f"{before}Zm9v.b4r-_~+/=")
    configuration = (DEPLOY / "base" / "nginx.conf").read_text()
    assert 'proxy_set_header Authorization "Bearer $client";' in configuration


def test_the_autoscaler_asks_for_a_number_that_bridges_say() -> None:
    """Of each pod; another name would never be answered, and no bridge be added."""
    (scaler,) = [
        found
        for found in documents(DEPLOY / "overlays" / "replicated" / "availability.yaml")
        if found["kind"] == "HorizontalPodAutoscaler"
    ]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["type"] == "Pods"
    said = (ROOT / "bridge" / "server" / "admission.py").read_text()
    prefix, _, name = metric["pods"]["metric"]["name"].partition("bridge_")
    assert prefix == "mcp_code_"
    assert f'"{name}": queue.waiting' in said
