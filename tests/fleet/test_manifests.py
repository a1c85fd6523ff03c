"""The manifests of deploy/, as a real API server takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from scripts.fleet.cluster import Cluster
from tests.deploy.pod_security import violations
from tests.fleet.rig import AS_OF_1_20, OVERLAYS, built


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_api_server_takes_every_object_of_an_overlay(cluster: Cluster, overlay: str) -> None:
    objects = built(cluster, overlay)
    assert {"Namespace", "Deployment", "Role", "NetworkPolicy", "ResourceQuota"} <= {
        found["kind"] for found in objects
    }
    for found in objects:
        version = AS_OF_1_20.get(found["apiVersion"], found["apiVersion"])
        text = json.dumps({**found, "apiVersion": version})
        cluster.kubectl("apply", "--dry-run=server", "--validate=true", "-f", "-", stdin=text)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pods_of_an_overlay_keep_to_the_restricted_standard(
    cluster: Cluster, overlay: str
) -> None:
    """Servers before 1.23 have no admission of it, so that the rules are checked by our own."""
    specs = [
        found["spec"]["template"]["spec"]
        for found in built(cluster, overlay)
        if found["kind"] == "Deployment"
    ]
    assert specs
    for spec in specs:
        assert violations(spec) == []


def test_a_field_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    wrong: dict[str, Any] = next(o for o in built(cluster, "single") if o["kind"] == "Deployment")
    wrong["spec"]["template"]["spec"]["runAsRoot"] = False
    with pytest.raises(RuntimeError, match="runAsRoot"):
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(wrong))
