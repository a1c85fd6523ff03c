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
from bridge.sandbox.kubernetes.pods import Template
from bridge.settings import load
from bridge.settings.kubernetes import Kubernetes
from tests.deploy.pod_security import violations

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BRIDGE = {"app.kubernetes.io/name": "mcp-code-bridge", "app.kubernetes.io/component": "bridge"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def one(kind: str, path: str) -> dict[str, Any]:
    (found,) = [d for d in documents(DEPLOY / path) if d["kind"] == kind]
    return found


POD: dict[str, Any] = one("Deployment", "base/deployment.yaml")["spec"]["template"]
BRIDGE_CONTAINER, GATEWAY = POD["spec"]["containers"]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("kustomization.yaml")), ids=str)
def test_a_kustomization_names_files_that_exist_and_forgets_none(path: Path) -> None:
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
    labels = one("Namespace", "base/namespace.yaml")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert violations(POD["spec"]) == []


def test_the_role_has_what_the_bridge_uses_and_no_more() -> None:
    role = one("Role", "base/rbac.yaml")
    assert {
        resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]
    } == {
        "pods": {"create", "get", "list", "patch", "delete"},
        "pods/attach": {"get", "create"},
        "resourcequotas": {"list"},
        "leases": {"create", "get", "list", "patch", "delete"},
    }
    groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert groups == {"", "coordination.k8s.io"}
    binding = one("RoleBinding", "base/rbac.yaml")
    assert binding["roleRef"]["kind"] == "Role"
    assert [subject["name"] for subject in binding["subjects"]] == ["mcp-code-bridge"]


def test_no_pod_has_a_network_but_the_bridge() -> None:
    deny, bridge = documents(DEPLOY / "base" / "network-policy.yaml")
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert bridge["spec"]["podSelector"] == {"matchLabels": BRIDGE}
    assert POD["metadata"]["labels"] == BRIDGE


def test_the_quota_counts_sandboxes_and_not_the_bridge() -> None:
    assert one("ResourceQuota", "base/quota.yaml")["spec"]["scopes"] == ["Terminating"]
    assert "activeDeadlineSeconds" not in POD["spec"]


def test_the_bridge_listens_where_only_its_gateway_reaches_it() -> None:
    assert BRIDGE_CONTAINER["args"] == ["serve", "--http", "127.0.0.1:8765", "--no-token"]
    assert "ports" not in BRIDGE_CONTAINER
    assert GATEWAY["name"] == "gateway"
    assert [port["containerPort"] for port in GATEWAY["ports"]] == [8080, 9090]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("config.toml")), ids=str)
def test_the_settings_of_the_manifests_are_settings(path: Path, tmp_path: Path) -> None:
    settings = load({}, {"MCP_BRIDGE_CONFIG": str(path), "HOME": str(tmp_path)})
    assert settings.kubernetes.namespace == "mcp-code-bridge"
    assert settings.kubernetes.requests["cpu"]
    assert "requests.cpu" in one("ResourceQuota", "base/quota.yaml")["spec"]["hard"]


def test_the_pods_that_the_bridge_makes_keep_to_the_restricted_standard() -> None:
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
    clients, run = tmp_path / "clients", tmp_path / "run"
    clients.mkdir()
    run.mkdir()
    for name, token in TOKENS.items():
        (clients / name).write_text(token)
    script = GATEWAY["command"][2].replace("/etc/gateway-clients", str(clients))
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
