"""The test cluster itself: what the other tests of this directory rely on."""

from __future__ import annotations

import json

import pytest

from scripts.fleet.cluster import Cluster
from tests.fleet.rig import BRIDGE, NAMESPACE


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        *((verb, "pods", True) for verb in ("create", "get", "list", "patch", "delete")),
        ("get", "pods/attach", True),
        ("create", "pods/attach", True),
        ("list", "resourcequotas", True),
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
