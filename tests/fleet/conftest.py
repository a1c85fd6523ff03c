"""Fixtures of the tests on a real cluster: all of them run on one, inside `scripts/fleet/run`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fleet.cluster import Cluster
from scripts.fleet.running import running_cluster
from tests.contract.conftest import rig
from tests.contract.rig import Rig, open_descriptors, rig_on
from tests.fleet.deploy_rig import give_images
from tests.fleet.engine import engine_on
from tests.fleet.rig import BRIDGE, NAMESPACE, prepare_namespace
from tests.sandbox.kubernetes.contract.conftest import OneEngine

__all__ = ["rig"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as started:
        prepare_namespace(started)
        yield started


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster) -> Path:
    return cluster.service_account_kubeconfig(NAMESPACE, BRIDGE)


@pytest.fixture(scope="session")
def deploy_images(cluster: Cluster) -> None:
    give_images(cluster)


@pytest.fixture(scope="session")
def engine() -> str:
    return "kubernetes"


@pytest.fixture(scope="session")
def engines(cluster: Cluster, kubeconfig: Path) -> OneEngine:
    return OneEngine(engine_on(cluster, kubeconfig))


@pytest.fixture(scope="module")
async def shared_rig(engines: OneEngine, tmp_path_factory: Any) -> AsyncIterator[Rig]:
    before = open_descriptors()
    async with rig_on(engines.get(""), tmp_path_factory.mktemp("rig") / "run") as made:
        yield made
    assert open_descriptors() <= before, "sockets or pipes were left open"
