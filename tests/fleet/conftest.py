"""Fixtures of the tests on a real cluster: all of them run on one, inside `scripts/fleet/run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.fleet.cluster import Cluster
from scripts.fleet.running import running_cluster
from tests.fleet.rig import BRIDGE, NAMESPACE, prepare_namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this directory, which the usual selection leaves out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Give a cluster of two nodes that have the runtime image, and the namespace for pods."""
    with running_cluster() as started:
        prepare_namespace(started)
        yield started


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster) -> Path:
    """Give the kubeconfig of the service account that `deploy/` makes for the bridge."""
    return cluster.service_account_kubeconfig(NAMESPACE, BRIDGE)
